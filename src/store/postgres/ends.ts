// What follows from the ends of jobs. The functions that end jobs, and what a crash leaves, are in `schema/functions/ends.ts`.

import { type EndedJob, endNotice } from '../../job/end-notice.ts'
import type { NewJob } from '../../job/record.ts'
import { decodeAnnotations, decodeError } from '../../job/stored.ts'
import { newId } from '../../runtime/id.ts'
import type { Enqueued } from '../store.ts'
import { isStored } from '../stored-jobs.ts'
import type { Row } from './connection/call.ts'
import { list } from './connection/columns.ts'
import type { PgTransaction } from './connection/database.ts'
import { type AfterCommit, addOrInsertDead, comesReady, countReady, type StoreContext } from './enqueue.ts'

/** What a transaction leaves to be delivered once it has committed. */
export interface Followed {
  /** Ids of jobs that have messages. */
  readonly wakes: readonly string[]
  /** Numbers of end notices. */
  readonly notices: readonly number[]
}

export const nothingFollows: Followed = { wakes: [], notices: [] }

export function sumOfFollowed(all: readonly Followed[]): Followed {
  return { wakes: all.flatMap(({ wakes }) => wakes), notices: all.flatMap(({ notices }) => notices) }
}

export function toFollowed(json: string | null | undefined): Followed {
  return json == null ? nothingFollows : { ...nothingFollows, ...(JSON.parse(json) as Partial<Followed>) }
}

/** Ends jobs, whose rows are locked. `ended`: what `holdfast.finish` takes. */
export async function finishJobs(tx: PgTransaction, ended: readonly object[]): Promise<Followed> {
  const [row] = await tx.query('select holdfast.finish($1::jsonb, $2)::text', [JSON.stringify(ended), tx.now])
  return toFollowed(row?.[0])
}

/** Deletes waiting jobs, whose rows and lanes are locked. */
export async function deleteWaiting(tx: PgTransaction, ids: readonly string[]): Promise<Followed> {
  const [row] = await tx.query('select holdfast.delete_waiting($1, $2)::text', [list(ids), tx.now])
  return toFollowed(row?.[0])
}

/** Jobs that became ready, or are held, at the front of their priority. */
export interface MadeFirst {
  /** How many became ready, of each queue. */
  readonly ready: ReadonlyMap<string, number>
  /** Limit keys that need an admission. */
  readonly keyRefs: readonly string[]
  readonly jobs: number
}

export interface MadeFirstJson {
  readonly ready?: Readonly<Record<string, number>> | null
  readonly limitKeys?: readonly string[]
  readonly jobs?: number
}

export function toMadeFirst({ ready, limitKeys = [], jobs = 0 }: MadeFirstJson): MadeFirst {
  return { ready: new Map(Object.entries(ready ?? {})), keyRefs: limitKeys, jobs }
}

/** Scheduled jobs, whose rows are locked, are ready at the front of their priority. */
export async function makeFirst(tx: PgTransaction, ids: readonly string[]): Promise<MadeFirst> {
  const [row] = await tx.query('select holdfast.make_first($1, $2)::text', [list(ids), tx.now])
  return toMadeFirst(JSON.parse(row?.[0] ?? '{}') as MadeFirstJson)
}

/**
 * Enqueues end notices, and removes them, in one transaction. Its commit does not wait for the disk: if it is lost, the
 * notices are there again. If a lane of theirs is busy, all of them are left to the sweep. Answers how many were enqueued;
 * those that another process takes at this moment are not.
 */
export async function enqueueNotices(context: StoreContext, nos: readonly number[]): Promise<number> {
  const { db, lanes } = context
  let jobs: readonly NewJob[] = []
  let enqueued: readonly Enqueued[] = []
  let afterCommit: AfterCommit = {}
  const isDone = await lanes.withLanesNow((ask) =>
    db
      .transactLightly(async (tx) => {
        await tx.readClock()
        jobs = (await tx.query('select * from holdfast.take_notices($1)', [list(nos)])).map(toNotice)
        ask(jobs)
        if (!lanes.knows(jobs)) throw new LanesBusy()
        const added = await addOrInsertDead(tx, lanes, jobs, 'onEnd')
        enqueued = added.enqueued
        afterCommit = { keyRefs: added.keyRefs, undeliverable: added.undeliverable }
        return true
      })
      .catch((error) => {
        if (!(error instanceof LanesBusy)) throw error
        return false
      }),
  )
  if (!isDone) return 0
  context.announce(countReady(jobs.filter((job, i) => comesReady(lanes, job) && isStored(enqueued[i] as Enqueued))))
  await context.afterCommit(afterCommit)
  return jobs.length
}

class LanesBusy extends Error {}

interface EndedJson
  extends Pick<EndedJob, 'id' | 'queue' | 'state' | 'attempts' | 'endedAt' | 'onEnd' | 'result' | 'labels'> {
  readonly payload: string | null
  readonly error: string | null
  readonly annotations: string | null
}

function toNotice([json]: Row): NewJob {
  const { payload, error, annotations, ...end } = JSON.parse(json as string) as EndedJson
  const decoded = { error: decodeError(error), annotations: decodeAnnotations(annotations) }
  return endNotice({ ...end, ...decoded, payload: payload ?? 'null' }, newId())
}
