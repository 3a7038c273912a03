// An idle queue: how soon a single job is claimed, and what waiting for a job costs the server.

import { setTimeout as sleep } from 'node:timers/promises'
import { open, postgres } from '../src/index.ts'
import { expectSame, Ledger } from './contender.ts'
import { pickUpsElsewhere } from './elsewhere.ts'
import { named, thousands, time } from './lines.ts'
import { benchQueue, idlePickUps, queueName } from './load.ts'
import { statementsSent } from './meter.ts'
import { dropSchema, holdfastContents, holdfastSchema, openContender } from './postgres-contenders.ts'
import type { Measured, Place } from './postgres-place.ts'
import type { Line } from './report.ts'
import { type Rounds, takeTurns } from './rounds.ts'
import { median, quantile } from './statistics.ts'

const aimMs = { p50: 2.8, p99: 10 }
/** Longer than wake-ups are collected for, and never in step with a timer. */
const shortPause = () => 20 + Math.random() * 30
const longPause = () => 2_000 + Math.random() * 1_000
const elsewhereMaxMs = 60_000
const roundsMax = 2

export async function latencySection({ url, sizes: { samples, longPauses, rounds } }: Place): Promise<Measured> {
  const taken = await takeTurns('idle pick-up', Math.min(rounds, roundsMax), {
    holdfast: async () => ({
      ...(await pickedUpHere(url, samples, true)),
      ...named('other', await pickedUpElsewhere(url, samples, shortPause, true)),
    }),
    'listen: false': async () => ({
      ...(await pickedUpHere(url, samples, false)),
      ...named('other', await pickedUpElsewhere(url, samples, shortPause, false)),
      ...named('late', await pickedUpElsewhere(url, longPauses, longPause, false)),
    }),
    raw: () => rawPickUps(url, samples),
  })
  const line = (name: string, key: string) => time(name, taken[key], 'ms')
  const lines = ['p50', 'p99'].flatMap((rank) => [
    line(`same process, ${rank}`, `same ${rank}`),
    line(`another process, ${rank}`, `other ${rank}`),
    line(`another process, idle for 2 to 3 s, ${rank}`, `late ${rank}`),
    line(`enqueue answered (it is on disk), ${rank}`, `answer ${rank}`),
  ])
  const section = {
    title: 'Idle latency: from the call of enqueue until a waiting claim has the job',
    note: `Aim: p50 at most ${aimMs.p50} ms, p99 at most ${aimMs.p99} ms. One job every 20 to 50 ms. Raw: an insert and a claim of the bare cursor in turn, with no process to wake.`,
    columns: ['holdfast', 'listen: false', 'raw'],
    ratio: { of: 'holdfast', to: 'raw' },
    lines: lines.filter(({ rounds: figures }) => Object.keys(figures).length > 0),
  }
  return { sections: [section], aims: latencyAims(taken) }
}

function latencyAims(taken: Rounds) {
  const places = { same: 'in the same process', other: 'in another process' }
  return Object.entries(places).flatMap(([key, where]) =>
    (['p50', 'p99'] as const).map((rank) => ({
      name: `idle pick-up ${where}, ${rank}`,
      unit: 'ms' as const,
      aim: aimMs[rank],
      isMost: true,
      figures: taken[`${key} ${rank}`]?.['holdfast'] ?? [],
    })),
  )
}

async function pickedUpHere(url: string, samples: number, listen: boolean): Promise<Record<string, number>> {
  await dropSchema(url, holdfastSchema)
  const holdfast = await open(postgres({ url, schema: holdfastSchema, listen }))
  const warmUp = 20
  await idlePickUps(benchQueue(holdfast), { samples: warmUp, pauseMs: shortPause })
  const { pickUpMs, answerMs } = await idlePickUps(benchQueue(holdfast), { samples, pauseMs: shortPause })
  expectSame(await holdfastContents(holdfast, url), { waiting: 0, running: 0, kept: samples + warmUp })
  await holdfast.close()
  return { ...named('same', pickUpMs), ...named('answer', answerMs) }
}

async function pickedUpElsewhere(url: string, samples: number, pauseMs: () => number, listen: boolean) {
  await dropSchema(url, holdfastSchema)
  const holdfast = await open(postgres({ url, schema: holdfastSchema, listen }))
  const there = { url: `${url}?schema=${holdfastSchema}`, maxMs: elsewhereMaxMs, listen, pauseMs }
  const pickUpMs = await pickUpsElsewhere(benchQueue(holdfast), { ...there, samples: samples + 1 })
  expectSame(await holdfastContents(holdfast, url), { waiting: 0, running: 0, kept: pickUpMs.length })
  await holdfast.close()
  return pickUpMs.slice(1) // at the first one the other process still makes connections
}

async function rawPickUps(url: string, samples: number): Promise<Record<string, number>> {
  await using contender = await openContender(url, 'bare cursor')
  const ledger = new Ledger()
  const both: number[] = []
  const answer: number[] = []
  for (let i = 0; i < samples; i++) {
    await sleep(shortPause())
    const startedAt = performance.now()
    await contender.enqueue(1)
    answer.push(performance.now() - startedAt)
    const taken = await contender.claim(0, 1)
    both.push(performance.now() - startedAt)
    ledger.enqueued += 1
    ledger.take(taken.ids)
    ledger.settled += await taken.settle()
  }
  await ledger.check(contender)
  return { ...named('same', both), ...named('answer', answer) }
}

const queueCounts = [1, 1_000] as const

/** Statements of a worker that waits and finds nothing, for one queue and for many, all of which have had jobs. */
export async function pollSection({ url, sizes: { idleMs } }: Place): Promise<Measured> {
  await dropSchema(url, holdfastSchema)
  const lines: Record<string, Record<string, number[]>> = {}
  const put = (name: string, column: string, figure: number) => {
    lines[name] = { ...lines[name], [column]: [figure] }
  }
  for (const listen of [true, false]) {
    for (const count of queueCounts) {
      await using holdfast = await open(postgres({ url, schema: holdfastSchema, listen }))
      const names = Array.from({ length: count }, (_, i) => `${queueName}.${i}`)
      await Promise.all(names.map((name) => holdfast.queue(name).enqueue(null)))
      // One claim reads a bounded number of queues that have jobs.
      for (let left = count; left > 0; ) {
        const leases = await holdfast.claim(names, { max: left })
        if (leases.length === 0) throw new Error(`${left} of ${count} jobs were not found: this run is invalid.`)
        await Promise.all(leases.map((lease) => lease.done()))
        left -= leases.length
      }
      await holdfast.claim(names, { wait: '1s' }) // warm-up: connections, first reads
      const column = `${thousands(count)} queue${count > 1 ? 's' : ''}`
      const before = statementsSent()
      const startedAt = performance.now()
      await holdfast.claim(names, { wait: idleMs })
      const seconds = (performance.now() - startedAt) / 1_000
      put(
        listen ? 'statements a second' : 'statements a second, listen: false',
        column,
        (statementsSent() - before) / seconds,
      )
      if (listen)
        for (const [name, ms] of Object.entries(await emptyClaims(() => holdfast.claim(names)))) put(name, column, ms)
    }
  }
  await dropSchema(url, holdfastSchema)
  const columns = queueCounts.map((count) => `${thousands(count)} queue${count > 1 ? 's' : ''}`)
  const section = {
    title: 'Polls of an idle worker, on one queue and on many',
    columns,
    ratio: { of: columns[1] as string, to: columns[0] as string },
    lines: Object.entries(lines).map(
      ([name, rounds]): Line => ({ name, unit: name.startsWith('statements') ? '1/s' : 'ms', rounds }),
    ),
  }
  return { sections: [section], aims: [] }
}

async function emptyClaims(claim: () => Promise<readonly unknown[]>): Promise<Record<string, number>> {
  const taken: number[] = []
  for (let i = 0; i < 50; i++) {
    const startedAt = performance.now()
    expectSame({ claimed: (await claim()).length }, { claimed: 0 })
    taken.push(performance.now() - startedAt)
  }
  return { 'a claim that finds nothing, p50': median(taken), 'a claim that finds nothing, p99': quantile(taken, 0.99) }
}
