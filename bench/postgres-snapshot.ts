// A snapshot that is held open: by a backup, a report, a forgotten session. Rows that were deleted since then cannot be removed,
// and a query that has to read over them becomes slower with every job.

import type { Aim } from './aims.ts'
import { cycle, Ledger, underLoad } from './contender.ts'
import { rate, renamed } from './lines.ts'
import { type ContenderName, openContender, withClient } from './postgres-contenders.ts'
import type { Measured, Place, Sizes } from './postgres-place.ts'
import { showProgress } from './progress.ts'
import { ratios } from './statistics.ts'

const names = ['holdfast, history kept', 'bare cursor', 'textbook'] as const satisfies readonly ContenderName[]
const aim = 0.9
const warmUpJobs = 20_000

interface Windows {
  readonly first: number[]
  readonly last: number[]
}

export async function snapshotSection({ url, sizes }: Place): Promise<Measured> {
  const { heldMs, windowMs } = sizes
  const columns = [`first ${windowMs / 1_000} s`, `last ${windowMs / 1_000} s`] as const
  const lines = []
  const aims: Aim[] = []
  for (const name of names) {
    showProgress(`a snapshot held open for ${heldMs / 1_000} s: ${name}`)
    const windows = await held(url, name, sizes)
    lines.push(rate(name, renamed({ ...windows }, columns)))
    const figures = ratios(windows.last, windows.first)
    if (name.startsWith('holdfast'))
      aims.push({ name: 'a snapshot held open: last to first', unit: 'ratio', aim, figures })
  }
  const section = {
    title: `A snapshot held open for ${heldMs / 1_000} s under full load (insert, claim and settle)`,
    note: `Aim: at least ${aim}. The snapshot is that of a transaction in repeatable read that has read once, at the start.`,
    columns,
    ratio: { of: columns[1], to: columns[0] },
    lines,
  }
  return { sections: [section], aims }
}

async function held(url: string, name: ContenderName, { heldMs, windowMs }: Sizes): Promise<Windows> {
  await using contender = await openContender(url, name)
  const ledger = new Ledger()
  await cycle(contender, ledger, warmUpJobs)
  const windows = { first: 0, last: 0 }
  await withClient(url, async (holder) => {
    await holder.query('begin isolation level repeatable read')
    await holder.query('select count(*) from pg_class')
    const startedAt = performance.now()
    const passedMs = () => performance.now() - startedAt
    await underLoad(contender, ledger, {
      wants: () => passedMs() < heldMs,
      onSettled: (jobs) => {
        const at = passedMs()
        if (at < windowMs) windows.first += jobs
        if (at >= heldMs - windowMs && at < heldMs) windows.last += jobs
      },
    })
    await holder.query('rollback')
  })
  await ledger.check(contender)
  return { first: [windows.first / (windowMs / 1_000)], last: [windows.last / (windowMs / 1_000)] }
}
