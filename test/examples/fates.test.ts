// `npm start` as a person runs it: to its end, stopped half-way, and killed half-way. In every case the totals of every fate are
// exact.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import test from 'node:test'
import { root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'

const scale = 0.25
const jobs = { quick: 60, slow: 3, flaky: 15, doomed: 5, hopeless: 3, scheduled: 10, unwanted: 4, late: 3, twins: 5 }
const total = Object.values(jobs).reduce((sum, count) => sum + count, 0)

test('a run ends with the intended state of every job, and the next start is a new run that counts only its own jobs', async () => {
  await using world = await setup()
  const { code, output } = await world.start().ended
  assert.equal(code, 0, output)
  assert.match(output, new RegExp(`Run 1 in fates.db: ${total} jobs enqueued`))
  assert.deepEqual(totalsIn(output), meantTotals())
  assert.deepEqual(attemptsIn(output), {
    ...{ quick: 60, slow: 3, flaky: 45, doomed: 15, hopeless: 3, scheduled: 10, unwanted: 0, late: 0, twins: 5 },
  })

  const next = await world.start().ended
  assert.equal(next.code, 0, next.output)
  assert.match(next.output, /Run 2 in fates.db/)
  assert.deepEqual(totalsIn(next.output), meantTotals())
})

test('Ctrl-C releases leased jobs and prints the totals; the next start goes on without a loss', async () => {
  await using world = await setup()
  const first = world.start()
  await first.halfWay
  first.child.kill('SIGINT')
  const stopped = await first.ended
  assert.equal(stopped.code, 130, stopped.output)
  assert.match(stopped.output, new RegExp(`Stopped. Run 1: \\d+ of ${total} jobs are finished, \\d+ were released\\.`))
  assert.doesNotMatch(stopped.output, /held by other processes/)

  const { code, output } = await world.start().ended
  assert.equal(code, 0, output)
  assert.match(output, /Run 1 in fates.db continues where it stopped: \d+ of/)
  assert.deepEqual(totalsIn(output), meantTotals())
  assert.equal(attemptsIn(output)['slow'], jobs.slow, 'a release costs no attempt')
})

test('after a kill half-way, the next start takes over when the leases have expired, and every total is exact', async () => {
  await using world = await setup()
  const first = world.start()
  await first.halfWay
  first.child.kill('SIGKILL')
  assert.equal((await first.ended).signal, 'SIGKILL')

  const { code, output } = await world.start().ended
  assert.equal(code, 0, output)
  assert.match(output, /Run 1 in fates.db continues where it stopped/)
  assert.deepEqual(totalsIn(output), meantTotals())
})

test('after a kill at any moment of its start, the next start has every job once', async () => {
  // A start takes some 200 ms: kills before the file exists, while the jobs are planned, and just after.
  const killAndStartAgain = async (afterMs: number) => {
    await using world = await setup()
    const first = world.start()
    setTimeout(() => first.child.kill('SIGKILL'), afterMs)
    await first.ended
    const { code, output } = await world.start().ended
    assert.equal(code, 0, output)
    assert.deepEqual(totalsIn(output), meantTotals())
  }
  await Promise.all([130, 160, 190, 220].map(killAndStartAgain))
})

test('two programs that start at once share one run', async () => {
  await using world = await setup()
  const ends = await Promise.all([world.start().ended, world.start().ended])
  for (const { code, output } of ends) {
    assert.equal(code, 0, output)
    assert.match(output, /Run 1 is finished/)
    assert.deepEqual(totalsIn(output), meantTotals())
  }
})

interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly output: string
}

interface Started {
  readonly child: ChildProcess
  /** A good part of the jobs is finished, and slow ones are running. */
  readonly halfWay: Promise<void>
  readonly ended: Promise<Ended>
}

async function setup() {
  const scratch = await scratchDirectory()
  const program = join(root, 'examples/fates.ts')
  const start = (): Started => {
    const args = [program, 'fates.db', '--scale', String(scale)]
    return watch(spawn(process.execPath, args, { cwd: scratch.path, stdio: ['ignore', 'pipe', 'pipe'] }))
  }
  return { start, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
}

function watch(child: ChildProcess & { stdout: NodeJS.ReadableStream; stderr: NodeJS.ReadableStream }): Started {
  const output: string[] = []
  const halfWay = Promise.withResolvers<void>()
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      output.push(line)
      const [, finished, running] = /(\d+) of \d+ finished: .* (\d+) running/.exec(line) ?? []
      if (Number(finished) > 20 && Number(running) > 0) halfWay.resolve()
    })
  }
  const ended = new Promise<Ended>((resolve) => {
    child.once('close', (code, signal) => {
      resolve({ code, signal, output: output.join('\n') })
      halfWay.reject(new Error(`It ended before it was half-way:\n${output.join('\n')}`))
    })
  })
  halfWay.promise.catch(() => {})
  return { child, halfWay: halfWay.promise, ended }
}

type Totals = Record<string, { jobs: number; done: number; dead: number; cancelled: number; refused: number }>

function meantTotals(): Totals {
  const endings: Record<string, 'dead' | 'cancelled'> = {
    ...{ doomed: 'dead', hopeless: 'dead', unwanted: 'cancelled', late: 'cancelled' },
  }
  return Object.fromEntries(
    Object.entries(jobs).map(([fate, count]) => {
      const none = { done: 0, dead: 0, cancelled: 0, refused: fate === 'twins' ? 2 * count : 0 }
      return [fate, { jobs: count, ...none, [endings[fate] ?? 'done']: count }]
    }),
  )
}

function totalsIn(output: string): Totals {
  const rows = rowsIn(output).map(([fate, [count, done, dead, cancelled, , refused]]) => {
    return [fate, { jobs: count, done, dead, cancelled, refused }]
  })
  return Object.fromEntries(rows)
}

function attemptsIn(output: string): Record<string, number> {
  return Object.fromEntries(rowsIn(output).map(([fate, numbers]) => [fate, numbers[4] ?? 0]))
}

/** The table's lines: a fate, and its six numbers. */
function rowsIn(output: string): [string, number[]][] {
  const rows = output.matchAll(/^ {2}([a-z]+) .*?((?: +(?:\d+|·)){6})$/gm)
  return [...rows]
    .map(([, fate = '', cells = '']): [string, number[]] => [fate, cells.trim().split(/ +/).map(toNumber)])
    .filter(([fate]) => fate in jobs)
}

function toNumber(cell: string): number {
  return cell === '·' ? 0 : Number(cell)
}
