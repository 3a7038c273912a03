// A run as it is stored: its job, its whole journal, and the ends of children that it waits for.

import type { StepRecord } from '../job/journal.ts'
import type { JobRecord } from '../job/record.ts'
import type { Journal, Store } from '../store/store.ts'
import { type ChildStatus, childrenIn, type FlowStatus, toStatus } from './status.ts'

type Reads = Pick<Store, 'journal' | 'outcomes'>

export async function readStatus(store: Reads, job: JobRecord): Promise<FlowStatus> {
  const { records, partial } = await readJournal(store, job.id)
  const children = childrenIn(records)
  const ends = await Promise.all(children.map(async (child) => [child, await endOf(store, child)] as const))
  const states = new Map(ends)
  return toStatus({ job, records, partial, childState: (child) => states.get(child) ?? null })
}

async function readJournal(
  store: Reads,
  id: string,
): Promise<{ readonly records: readonly StepRecord[]; readonly partial: string | null }> {
  const records: StepRecord[] = []
  let journal: Journal | null = null
  let after: number | null = null
  do {
    journal = await store.journal({ id, after })
    records.push(...(journal?.records ?? []))
    after = journal?.next ?? null
  } while (after !== null)
  return { records, partial: journal?.partial ?? null }
}

async function endOf(store: Reads, child: string): Promise<ChildStatus['state']> {
  const [outcome] = await store.outcomes([child])
  return outcome === 'live' ? 'live' : (outcome?.state ?? null)
}
