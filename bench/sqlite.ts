// The SQLite store compared with raw `node:sqlite`.
//
// Holdfast is used as in an application: `open('sqlite:…')`, its own thread, the public API, a payload of about 100 bytes that is
// checked, encoded, sent to the thread and parsed again. raw-sqlite.ts describes what the reference does and leaves out. Both run
// in this process, in turns, on fresh files in the same directory. The rows of each file are counted afterwards.
//
// A ratio is the median of the rounds' own ratios. Rates: more is better, and a ratio of 1 would mean that promises,
// messages, checks and encoding cost nothing. Times: less is better.

import { pickUpsElsewhere } from './elsewhere.ts'
import { makeIds } from './ids.ts'
import { named, rate, thousands, time } from './lines.ts'
import {
  benchQueue,
  cycleInTurn,
  cycleOverlapped,
  drain,
  enqueueInBulk,
  enqueueSingly,
  idlePickUps,
  pause,
} from './load.ts'
import type { Section } from './report.ts'
import { perSecond, type Rounds, takeTurns } from './rounds.ts'
import type { BenchOptions } from './run.ts'
import { backlogSections } from './sqlite-backlog.ts'
import {
  callers,
  Files,
  finished,
  group,
  inGroups,
  rawCycle,
  rawDrain,
  type Sizes,
  small,
  toSizes,
  waiting,
} from './sqlite-files.ts'
import { smallestSection, threadSection } from './sqlite-thread.ts'

const pauseMs = 3

export async function* sqliteBench({ directory, jobs, rounds, isQuick, only }: BenchOptions): AsyncGenerator<Section> {
  const sizes = toSizes(jobs, rounds, isQuick)
  const files = new Files(directory)
  const steps: readonly (readonly [title: string, run: (files: Files, sizes: Sizes) => Promise<Section[]>])[] = [
    ['enqueue', enqueueSection],
    ['drain', drainSection],
    ['cycle', cycleSection],
    ['latency', latencySection],
    ['backlog', backlogSections],
    ['thread', threadSection],
    ['smallest', smallestSection],
  ]
  for (const [title, run] of steps) if (title.includes(only)) yield* await run(files, sizes)
}

async function enqueueSection(files: Files, { jobs, singles, oneByOne, rounds }: Sizes): Promise<Section[]> {
  const ids = makeIds(Math.max(jobs, singles))
  const taken = await takeTurns('enqueue', rounds, {
    holdfast: async () => ({
      single: await files.holdfast(waiting(singles), (holdfast) =>
        perSecond(singles, () => enqueueSingly(benchQueue(holdfast), { jobs: singles, callers })),
      ),
      bulk: await files.holdfast(waiting(jobs), (holdfast) =>
        perSecond(jobs, () => enqueueInBulk(benchQueue(holdfast), { jobs, group })),
      ),
    }),
    raw: async () => ({
      single: await files.raw(waiting(singles), (raw) =>
        perSecond(singles, () => inGroups(raw, ids, singles, callers)),
      ),
      oneByOne: await files.raw(waiting(oneByOne), (raw) => perSecond(oneByOne, () => inGroups(raw, ids, oneByOne, 1))),
      bulk: await files.raw(waiting(jobs), (raw) => perSecond(jobs, () => inGroups(raw, ids, jobs, group))),
    }),
  })
  const oneByOneRounds = { holdfast: taken['single']?.['holdfast'] ?? [], raw: taken['oneByOne']?.['raw'] ?? [] }
  return [
    {
      title: 'Enqueue',
      ...besideRaw,
      lines: [
        rate(`single, ${callers} callers; raw in groups of ${callers}`, taken['single']),
        rate(`single, ${callers} callers; raw one transaction each`, oneByOneRounds),
        rate(`bulk, by ${thousands(group)}`, taken['bulk']),
      ],
    },
  ]
}

async function drainSection(files: Files, { jobs, rounds }: Sizes): Promise<Section[]> {
  const taken = await takeTurns('drain', rounds, {
    holdfast: async () => ({
      drain: await files.holdfast(
        finished(jobs),
        (holdfast) => perSecond(jobs, () => drain(benchQueue(holdfast), { jobs, batch: group })),
        jobs,
      ),
    }),
    raw: async () => ({
      drain: await files.raw(finished(jobs), (raw) => perSecond(jobs, () => rawDrain(raw, jobs, group)), jobs),
    }),
  })
  return [
    {
      title: 'Drain: claim and done',
      ...besideRaw,
      lines: [rate(`in batches of ${thousands(group)}`, taken['drain'])],
    },
  ]
}

async function cycleSection(files: Files, { jobs, hundreds, rounds }: Sizes): Promise<Section[]> {
  const ids = makeIds(jobs)
  const loads = { inTurn: cycleInTurn, overlapped: cycleOverlapped }
  const sides = async (size: number, count: number): Promise<Rounds> =>
    takeTurns(`full cycle, groups of ${thousands(size)}`, rounds, {
      holdfast: async () => {
        const figures: Record<string, number> = {}
        for (const [name, load] of Object.entries(loads)) {
          figures[name] = await files.holdfast(finished(count), (holdfast) =>
            perSecond(count, () => load(benchQueue(holdfast), { jobs: count, group: size })),
          )
        }
        return figures
      },
      raw: async () => {
        const figure = await files.raw(finished(count), (raw) =>
          perSecond(count, () => rawCycle(raw, ids, count, size)),
        )
        return { inTurn: figure, overlapped: figure }
      },
    })
  const hundred = await sides(small, hundreds)
  const thousand = await sides(group, jobs)
  return [
    {
      title: 'Full cycle: enqueue, claim and done',
      note: 'Overlapped: a producer beside a consumer, so that one group is enqueued while another is settled; both may then share a commit.',
      ...besideRaw,
      lines: [
        rate(`groups of ${thousands(small)}, one step after the other`, hundred['inTurn']),
        rate(`groups of ${thousands(small)}, overlapped`, hundred['overlapped']),
        rate(`groups of ${thousands(group)}, one step after the other`, thousand['inTurn']),
        rate(`groups of ${thousands(group)}, overlapped`, thousand['overlapped']),
      ],
    },
  ]
}

async function latencySection(files: Files, { samples, rounds }: Sizes): Promise<Section[]> {
  const [firstId] = makeIds(1)
  const taken = await takeTurns('idle latency', rounds, {
    holdfast: async () => {
      const { pickUpMs, answerMs } = await files.holdfast(finished(samples), (holdfast) =>
        idlePickUps(benchQueue(holdfast), { samples, pauseMs }),
      )
      const elsewhere = await files.holdfast(
        (pickUpMs: number[]) => finished(pickUpMs.length),
        (holdfast, path) => pickUpsElsewhere(benchQueue(holdfast), { url: `sqlite:${path}`, samples, pauseMs }),
      )
      return { ...named('same', pickUpMs), ...named('answer', answerMs), ...named('other', elsewhere) }
    },
    raw: async () => {
      const both: number[] = []
      const answer: number[] = []
      await files.raw(finished(samples), async (raw) => {
        for (let i = 0; i < samples; i++) {
          await pause(pauseMs)
          const startedAt = performance.now()
          raw.enqueue([firstId as string])
          answer.push(performance.now() - startedAt)
          const rows = raw.claim(1)
          both.push(performance.now() - startedAt)
          raw.done(rows)
        }
        return 0
      })
      return { ...named('same', both), ...named('answer', answer) }
    },
  })
  return [
    {
      title: 'Idle latency: one job, nothing else to do',
      note: 'Picked up: from the call of enqueue until a waiting claim has the job. Raw: an insert and a claim in one thread, with no process to wake.',
      ...besideRaw,
      lines: [
        time('picked up in the same process, p50', taken['same p50'], 'ms'),
        time('picked up in the same process, p99', taken['same p99'], 'ms'),
        time('picked up in another process, p50', taken['other p50'], 'ms'),
        time('picked up in another process, p99', taken['other p99'], 'ms'),
        time('enqueue answered (it is on disk), p50', taken['answer p50'], 'ms'),
        time('enqueue answered (it is on disk), p99', taken['answer p99'], 'ms'),
      ],
    },
  ]
}

const besideRaw = { columns: ['holdfast', 'raw'], ratio: { of: 'holdfast', to: 'raw' } } as const
