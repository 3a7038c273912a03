// Crashes in a row on one store, and what is found afterwards. A seed decides the moments and what the processes do.

import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { Program } from '../sqlite/process.ts'
import type { Ground, ServerGround } from './ground.ts'
import type { Findings } from './judge.ts'
import { Random } from './random.ts'

export interface SeriesOptions {
  readonly seed: number
  readonly crashes: number
}

/** How long processes live once they are warm. */
const lifeMinMs = 80
const lifeMaxMs = 250
/** How many die before that: while they open the store, and while they begin. */
const deaths = { opening: 15, beginning: 15, warm: 70 } as const
const drainMaxMs = 30_000

/** One process after the other is killed. With `beside`, another one works beside them all and goes on. */
export async function killSeries(
  ground: Ground,
  { seed, crashes, beside = false }: SeriesOptions & { readonly beside?: boolean },
): Promise<Findings> {
  const random = new Random(seed)
  const start = (life: string) => startReckless(ground, { life, seed: random.below(2 ** 32), mayBeDown: false })
  await using survivor = beside ? start('survivor') : undefined
  if (survivor) await begin(survivor)
  // The next is started while this one lives: what takes long is loading it.
  await using stack = new AsyncDisposableStack()
  let next = stack.use(start('life0'))
  for (let crash = 1; crash <= crashes; crash++) {
    const program = next
    if (crash < crashes) next = stack.use(start(`life${crash}`))
    await program.hear()
    program.tell('go')
    const death = random.weighted(deaths)
    if (death !== 'opening') await program.hear()
    if (death === 'warm') await program.hear()
    await sleep(death === 'warm' ? random.between(lifeMinMs, lifeMaxMs) : random.between(0, lifeMinMs))
    program.kill()
    assert.equal(await program.ended, 'SIGKILL', 'it was killed, and had not failed before')
  }
  if (survivor) assert.equal(await survivor.ask('stop'), 'stopped')
  return findings(ground, { seed: random.below(2 ** 32), losesClaims: false })
}

/** Two processes work on while their server crashes again and again. */
export async function serverSeries(ground: ServerGround, { seed, crashes }: SeriesOptions): Promise<Findings> {
  const random = new Random(seed)
  const start = (life: string) => startReckless(ground, { life, seed: random.below(2 ** 32), mayBeDown: true })
  await using one = start('one')
  await using two = start('two')
  const both = [one, two]
  await Promise.all(both.map(begin))
  for (let crash = 0; crash < crashes; crash++) {
    await sleep(random.between(lifeMinMs, lifeMaxMs))
    await ground.crash(random.between(0, 100))
    // They try again ever more seldom: without this the next crash would find them asleep.
    await Promise.all(both.map((program) => program.ask('settle')))
  }
  assert.deepEqual(await Promise.all(both.map((program) => program.ask('stop'))), ['stopped', 'stopped'])
  return findings(ground, { seed: random.below(2 ** 32), losesClaims: true })
}

function startReckless(
  ground: Ground,
  { life, seed, mayBeDown }: { readonly life: string; readonly seed: number; readonly mayBeDown: boolean },
): Program {
  return Program.start('../../crash/programs/reckless', ground.url, ground.log(life), life, `${seed}`, `${mayBeDown}`)
}

async function begin(program: Program): Promise<void> {
  await program.hear()
  await program.ask('go')
  await program.hear()
}

async function findings(
  ground: Ground,
  { seed, losesClaims }: { readonly seed: number; readonly losesClaims: boolean },
): Promise<Findings> {
  const found = await ground.observe()
  await ground.inspect()
  await using program = Program.start(
    '../../crash/programs/drains',
    ...[ground.url, ground.log('drain'), `${seed}`, `${drainMaxMs}`],
  )
  await program.hear()
  assert.equal(await program.ended, 0)
  const left = await ground.observe()
  await ground.inspect()
  return { notes: ground.notes(), found, left, losesClaims }
}

/** What the series has seen, to be told of. */
export function summary({ notes, left }: Findings): string {
  const answered = notes.filter(({ answer }) => answer !== null).length
  const refused = notes.filter((note) => note.refused !== null).length
  const unknown = notes.length - answered - refused
  const of = (verb: string) => notes.filter((note) => note.verb === verb && note.answer !== null).length
  return `${answered} calls answered (${of('enqueue')} enqueues, ${of('settle')} settlements), ${refused} refused, ${unknown} unknown; ${left.jobs.length} jobs`
}
