// How many waiting jobs affect the drain.

import { open, postgres } from '../src/index.ts'
import { chunk, drainTurns } from './backlog.ts'
import { expectSame } from './contender.ts'
import { rate, renamed, short, thousands } from './lines.ts'
import { benchQueue, drain, enqueueInBulk } from './load.ts'
import { dropSchema } from './postgres-contenders.ts'
import type { Measured, Place } from './postgres-place.ts'
import { showProgress } from './progress.ts'
import { ratios } from './statistics.ts'

const few = 'holdfast_bench_few'
const many = 'holdfast_bench_many'
const group = 1_000
const fillGroup = 5_000
const aim = 0.9

export async function backlogSection({ url, sizes: { backlog, backlogTurns } }: Place): Promise<Measured> {
  for (const schema of [few, many]) await dropSchema(url, schema)
  await fill(url, few, chunk)
  await fill(url, many, backlog)
  const taken = await drainTurns(few, many, backlogTurns, async (schema) => {
    const holdfast = await open(postgres({ url, schema }))
    return {
      drain: (jobs) => drain(benchQueue(holdfast), { jobs, batch: group }),
      fill: (jobs) => enqueueInBulk(benchQueue(holdfast), { jobs, group: fillGroup }),
      close: () => holdfast.close(),
    }
  })
  const drained = (backlogTurns + 1) * chunk
  await check(url, few, { ready: chunk, running: 0, done: drained })
  await check(url, many, { ready: backlog - drained, running: 0, done: drained })
  for (const schema of [few, many]) await dropSchema(url, schema)
  const columns = [`${short(chunk)} waiting`, `${short(backlog)} waiting`] as const
  const rounds = renamed(taken, columns)
  const section = {
    title: `Drain with many jobs waiting, in batches of ${thousands(group)}`,
    note: `Aim: at least ${aim}. ${thousands(chunk)} jobs at a time, by one consumer that settles a batch while it claims the next.`,
    columns,
    ratio: { of: columns[1], to: columns[0] },
    lines: [rate('holdfast, history kept', rounds)],
  }
  const figures = ratios(rounds[columns[1]] ?? [], rounds[columns[0]] ?? [])
  return { sections: [section], aims: [{ name: `drain: ${columns[1]} to ${columns[0]}`, unit: 'ratio', aim, figures }] }
}

async function fill(url: string, schema: string, jobs: number): Promise<void> {
  showProgress(`enqueuing ${thousands(jobs)} jobs`)
  await using holdfast = await open(postgres({ url, schema }))
  await enqueueInBulk(benchQueue(holdfast), { jobs, group: fillGroup })
}

async function check(url: string, schema: string, wanted: { ready: number; running: number; done: number }) {
  await using holdfast = await open(postgres({ url, schema }))
  const { ready, running, done } = await holdfast.stats()
  expectSame({ ready, running, done }, wanted)
}
