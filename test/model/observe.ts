// Compares the whole state of store and model: every record with its history, the lists in their order, the counts, batches and
// the key-value store. The store is read in small pages, so that paging is tested too.

import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import type { BatchRecord } from '../../src/job/batch.ts'
import type { JobFilter } from '../../src/job/filter.ts'
import type { Message } from '../../src/job/journal.ts'
import type { JobRecord } from '../../src/job/record.ts'
import type { DeadGroup, Journal, KvEntry, QueueStats, Store } from '../../src/store/store.ts'
import { wholePage } from '../conformance/expect.ts'
import { acceptsMessages, allKeys, compareRecords, itemsAgree, plain, readItems, show } from './commands.ts'
import type { Model } from './model.ts'
import { batchKeys, givenIds } from './steps.ts'

export interface Observed {
  /** In the order of the pages. */
  readonly records: readonly JobRecord[]
  readonly stats: readonly QueueStats[]
  readonly groups: readonly DeadGroup[]
  readonly kv: readonly (KvEntry & { readonly key: string })[]
  /** In the order of the pages, each with its items. */
  readonly batches: readonly (readonly [batch: BatchRecord, items: readonly JobRecord[]])[]
  readonly keyed: readonly (readonly [key: string, batch: BatchRecord | null])[]
  /** The ids that several jobs share, each with the job that it names now. */
  readonly named: readonly (readonly [id: string, job: JobRecord | null])[]
  /** The journals and mailboxes of some jobs, and the messages of keys. */
  readonly journals: readonly (readonly [id: string, journal: Journal | null, messages: readonly Message[]])[]
  readonly ofKeys: readonly Message[]
}

const pageSize = 7
const othersMax = 3
const pagesMax = 500

/** `ids`: jobs that should have a journal or messages. Those that have a journal, and a few others, are read too. */
export async function observe(store: Store, ids: readonly string[] = []): Promise<Observed> {
  const records = await readRecords(store)
  const others = records.filter(({ hasJournal }, i) => hasJournal || i < othersMax).map(({ id }) => id)
  return {
    records,
    journals: await readJournals(store, [...new Set([...ids, ...others])]),
    ofKeys: await store.messages({ id: null, keys: allKeys }),
    stats: await store.stats(),
    groups: await readGroups(store),
    kv: await readKv(store),
    batches: await readBatches(store),
    keyed: await Promise.all(batchKeys.map(async (key) => [key, await store.batch({ key })] as const)),
    named: await Promise.all(givenIds.map(async (id) => [id, await store.job(id)] as const)),
  }
}

export async function readRecords(store: Store, filter: JobFilter = {}): Promise<JobRecord[]> {
  const records: JobRecord[] = []
  let after: string | null = null
  for (let pages = 0; pages < pagesMax; pages++) {
    const page: Awaited<ReturnType<typeof wholePage>> = await wholePage(store, { filter, limit: pageSize, after })
    assert.ok(page.jobs.length <= pageSize, 'a page is no longer than its limit')
    records.push(...page.jobs)
    after = page.next
    if (after === null) return records
  }
  throw new assert.AssertionError({ message: 'the pages of jobs never end' })
}

async function readJournals(store: Store, ids: readonly string[]): Promise<Observed['journals']> {
  const read = async (id: string) =>
    [id, await store.journal({ id, after: null }), await store.messages({ id, keys: [] })] as const
  return Promise.all(ids.map(read))
}

async function readGroups(store: Store): Promise<DeadGroup[]> {
  const groups: DeadGroup[] = []
  let after: string | null = null
  for (let pages = 0; pages < pagesMax; pages++) {
    const page = await store.deadGroups({ queue: null, order: 'largest', limit: 2, after })
    groups.push(...page.groups)
    after = page.next
    if (after === null) return groups
  }
  throw new assert.AssertionError({ message: 'the pages of error groups never end' })
}

async function readKv(store: Store): Promise<Observed['kv']> {
  const entries: (KvEntry & { readonly key: string })[] = []
  let after: string | null = null
  for (let pages = 0; pages < pagesMax; pages++) {
    const page = await store.kvScan({ prefix: '', limit: 2, after })
    entries.push(...page.entries)
    after = page.next
    if (after === null) return entries
  }
  throw new assert.AssertionError({ message: 'the pages of the key-value store never end' })
}

async function readBatches(store: Store): Promise<Observed['batches']> {
  const found: [BatchRecord, readonly JobRecord[]][] = []
  let after: string | null = null
  for (let pages = 0; pages < pagesMax; pages++) {
    const page = await store.batches({ state: null, limit: 2, after })
    for (const batch of page.batches) found.push([batch, await readItems(store, { batch: batch.id, ...everything })])
    after = page.next
    if (after === null) return found
  }
  throw new assert.AssertionError({ message: 'the pages of batches never end' })
}

const everything = { state: null, outcome: null, warning: null }

/** How the store's state differs from the model's, or null. */
export function differenceOf(model: Model, observed: Observed): string | null {
  return contentsDiffer(model, observed) ?? journalsDiffer(model, observed) ?? listsDiffer(model, observed)
}

/** The same, without journals and the order of lists. */
export function contentsDiffer(model: Model, observed: Observed): string | null {
  const parts = [recordsDiffer, namesDiffer, statsDiffer, groupsDiffer, kvDiffers, batchesDiffer]
  return parts.map((differs) => differs(model, observed)).find((difference) => difference !== null) ?? null
}

function recordsDiffer(model: Model, { records }: Observed): string | null {
  const real = records.toSorted(compareRecords)
  const expected = model.all().sort(compareRecords)
  const at = expected.findIndex((job, i) => !isDeepStrictEqual(plain(job), plain(real[i])))
  if (at < 0 && real.length === expected.length) return null
  const [is, should] = [real[at < 0 ? expected.length : at], expected[at]]
  return `the store has ${real.length} jobs of ${expected.length}; it shows\n${show(plain(is), true)}\nwhere there should be\n${show(plain(should), true)}`
}

/** An id names the newest job that has it. */
function namesDiffer(model: Model, { named }: Observed): string | null {
  for (const [id, real] of named) {
    const expected = model.job(id)
    if (isDeepStrictEqual(plain(real), plain(expected))) continue
    return `${show(id)} names\n${show(plain(real), true)}\nand should name\n${show(plain(expected), true)}`
  }
  return null
}

/** Ready jobs are listed in the order of a claim, scheduled ones by due time, finished ones newest first. */
function listsDiffer(model: Model, { records }: Observed): string | null {
  for (const queue of model.state.queues) {
    const of = (state: string) => records.filter((job) => job.queue === queue && job.state === state)
    const ids = (jobs: readonly { readonly id: string }[]) => jobs.map(({ id }) => id)
    const scheduled = model.state.live
      .filter((job) => job.queue === queue && job.state === 'scheduled')
      .sort((a, b) => a.runAt - b.runAt || a.born - b.born)
    const lanes = [...new Set(model.inOrder([queue]).map(({ batch }) => batch))]
    const lists = [
      ...lanes.map((lane) => {
        const inLane = ({ batch }: { readonly batch: string | null }) => batch === lane
        return ['ready', ids(of('ready').filter(inLane)), ids(model.inOrder([queue]).filter(inLane))] as const
      }),
      ['scheduled', ids(of('scheduled')), ids(scheduled)],
    ] as const
    for (const [state, real, expected] of lists) {
      if (!isDeepStrictEqual(real, expected)) {
        return `the ${state} jobs of ${queue} are listed as\n${show(real, true)}\nand should be\n${show(expected, true)}`
      }
    }
    for (const state of ['done', 'dead', 'cancelled']) {
      const times = of(state).map(({ finishedAt }) => finishedAt ?? 0)
      if (times.some((time, i) => i > 0 && time > (times[i - 1] ?? 0))) {
        return `the ${state} jobs of ${queue} are not listed newest first: they finished at ${show(times)}`
      }
    }
  }
  return null
}

function journalsDiffer(model: Model, { journals, ofKeys }: Observed): string | null {
  for (const [id, journal, messages] of journals) {
    const expected = model.journal(id)
    if (!isDeepStrictEqual(journal, expected))
      return `the journal of ${show(id)} is\n${show(journal, true)}\nand should be\n${show(expected, true)}`
    const born = model.find(id)?.born ?? -1
    if (!model.mail.accepts(born, { id, keys: [] }, messages))
      return `the mailbox of ${show(id)} has\n${show(messages, true)}\nand should have\n${show(model.mail.ofJob(born), true)}`
  }
  return acceptsMessages(model, null, ofKeys)
    ? null
    : `the messages of keys are\n${show(ofKeys, true)}\nand should be\n${show(model.mail.ofKeys(), true)}`
}

function statsDiffer(model: Model, { stats }: Observed): string | null {
  const expected = model.stats()
  const agree =
    isDeepStrictEqual(stats.map(withoutAge), expected.map(withoutAge)) &&
    stats.every((real, i) => agesAgree(model, real, expected[i]))
  return agree ? null : `stats are\n${show(stats, true)}\nand should be\n${show(expected, true)}`
}

function withoutAge({ oldestWaitingMs, ...counts }: QueueStats) {
  return { ...counts, hasWaiting: oldestWaitingMs !== null }
}

/** After the clock was set back, the longest waiting time is not defined. Then the age is only bounded. */
function agesAgree(model: Model, real: QueueStats, expected: QueueStats | undefined): boolean {
  const [age, atMost] = [real.oldestWaitingMs, expected?.oldestWaitingMs ?? null]
  if (!model.state.wasSetBack || age === null || atMost === null) return age === atMost
  return age >= 0 && age <= atMost
}

/** The groups equal a recount of the dead jobs. */
function groupsDiffer(_: Model, { groups, records }: Observed): string | null {
  const keyOf = (queue: string, group: string | null) => `${queue} ${group}`
  const recounted = new Map<string, number>()
  for (const { queue, errorGroup } of records.filter(({ state }) => state === 'dead')) {
    const key = keyOf(queue, errorGroup)
    recounted.set(key, (recounted.get(key) ?? 0) + 1)
  }
  const counted = new Map(groups.map(({ queue, group, dead }) => [keyOf(queue, group), dead]))
  return isDeepStrictEqual(counted, recounted)
    ? null
    : `error groups are\n${show([...counted], true)}\nand a recount says\n${show([...recounted], true)}`
}

function kvDiffers(model: Model, { kv }: Observed): string | null {
  const expected = model.kv.scan('')
  const agree =
    kv.length === expected.length &&
    expected.every((entry, i) => {
      const real = kv[i]
      return real !== undefined && real.key === entry.key && model.kv.acceptsEntry(entry.key, entry, real)
    })
  return agree ? null : `the key-value store has\n${show(kv, true)}\nand should have\n${show(expected, true)}`
}

function batchesDiffer(model: Model, { batches, keyed }: Observed): string | null {
  const expected = model.batches.records()
  const real = batches.map(([batch]) => batch)
  if (!isDeepStrictEqual(plain(real), plain(expected))) {
    const at = expected.findIndex((batch, i) => !isDeepStrictEqual(plain(batch), plain(real[i])))
    return `of ${expected.length} batches there are ${real.length}; one is\n${show(real[at], true)}\nand should be\n${show(expected[at], true)}`
  }
  for (const [{ id }, items] of batches) {
    const wanted = model.items({ batch: id, ...everything })
    if (!itemsAgree(wanted, items)) return `items are\n${show(items, true)}\nand should be\n${show(wanted, true)}`
  }
  for (const [key, batch] of keyed) {
    const named = model.batches.findByKey(key)
    if (batch?.id !== named?.id) return `the key ${key} names ${show(batch?.id)} and should name ${show(named?.id)}`
  }
  return null
}
