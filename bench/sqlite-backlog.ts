// How many waiting jobs affect the drain, and how many finished jobs affect a claim.

import { open } from '../src/index.ts'
import { chunk, drainTurns } from './backlog.ts'
import { rate, renamed, short, thousands, time } from './lines.ts'
import { benchQueue, drain, timedClaims } from './load.ts'
import { showProgress } from './progress.ts'
import { checkContents, RawSqlite } from './raw-sqlite.ts'
import type { Section } from './report.ts'
import { takeTurns } from './rounds.ts'
import { type Files, fill, group, rawDrain, type Sizes, small, using } from './sqlite-files.ts'
import { median } from './statistics.ts'

/** Both sections use the same large file. */
export async function backlogSections(files: Files, sizes: Sizes): Promise<Section[]> {
  const { backlog, backlogTurns } = sizes
  const few = files.next()
  const many = files.next()
  showProgress(`filling a file with ${thousands(backlog)} jobs`)
  fill(few, chunk)
  fill(many, backlog)
  const drained = {
    holdfast: await drainTurns(few, many, backlogTurns, async (path) => {
      const holdfast = await open(`sqlite:${path}`)
      return {
        drain: (jobs) => drain(benchQueue(holdfast), { jobs, batch: group }),
        fill: (jobs) => fill(path, jobs),
        close: () => holdfast.close(),
      }
    }),
    raw: await drainTurns(few, many, backlogTurns, async (path) => {
      const raw = new RawSqlite(path)
      return {
        drain: async (jobs) => rawDrain(raw, jobs, group),
        fill: (jobs) => raw.fill(jobs),
        close: async () => raw[Symbol.dispose](),
      }
    }),
  }
  const left = backlog - 2 * (backlogTurns + 1) * chunk
  checkContents(many, { jobs: backlog, ready: left, running: 0, done: backlog - left })
  files.remove(few)
  const claims = await claimSection(files, many, sizes)
  files.remove(many)
  const columns = [`${short(chunk)} waiting`, `${short(backlog)} waiting`] as const
  return [
    {
      title: `Drain with many jobs waiting, in batches of ${thousands(group)}`,
      columns,
      ratio: { of: columns[1], to: columns[0] },
      lines: [rate('holdfast', renamed(drained.holdfast, columns)), rate('raw', renamed(drained.raw, columns))],
    },
    claims,
  ]
}

async function claimSection(files: Files, many: string, { backlog, claims }: Sizes): Promise<Section> {
  showProgress(`finishing ${thousands(backlog)} jobs`)
  const none = files.next()
  const need = 2 * (claims + Math.ceil(claims / 10) * small)
  using(many, (raw) => {
    raw.finishAll()
    raw.fill(need)
  })
  fill(none, need)
  const rounds = { one: claims, hundred: Math.ceil(claims / 10) }
  const measureHoldfast = async (path: string) => {
    await using holdfast = await open(`sqlite:${path}`)
    const one = await timedClaims(benchQueue(holdfast), { claims: rounds.one, max: 1 })
    const hundred = await timedClaims(benchQueue(holdfast), { claims: rounds.hundred, max: small })
    return { one: median(one), hundred: median(hundred) }
  }
  const measureRaw = (path: string) =>
    using(path, (raw) => {
      const timed = (count: number, max: number) =>
        median(
          Array.from({ length: count }, () => {
            const startedAt = performance.now()
            raw.claim(max)
            return (performance.now() - startedAt) * 1_000
          }),
        )
      return { one: timed(rounds.one, 1), hundred: timed(rounds.hundred, small) }
    })
  const holdfast = await takeTurns('claims', 1, {
    none: () => measureHoldfast(none),
    many: () => measureHoldfast(many),
  })
  const raw = await takeTurns('claims', 1, { none: () => measureRaw(none), many: () => measureRaw(many) })
  checkContents(none, { jobs: need, ready: 0, running: need, done: 0 })
  checkContents(many, { jobs: backlog + need, ready: 0, running: need, done: backlog })
  files.remove(none)
  const columns = ['0 finished', `${short(backlog)} finished`] as const
  const line = (name: string, figures: Record<string, number[]> | undefined) =>
    time(name, renamed(figures, columns), 'µs')
  return {
    title: 'Claim with many finished jobs in the file, one claim at a time (median)',
    columns,
    ratio: { of: columns[1], to: columns[0] },
    lines: [
      line('claim of 1, holdfast', holdfast['one']),
      line('claim of 1, raw', raw['one']),
      line(`claim of ${small}, holdfast`, holdfast['hundred']),
      line(`claim of ${small}, raw`, raw['hundred']),
    ],
  }
}
