// A queue's definition and an operator's override of its limits; see `schema/functions/define-queue.ts`.

import { toError } from '../../errors.ts'
import type { LimitOverride } from '../../job/limit-key.ts'
import type { Limit, QueueSettings } from '../../job/record.ts'
import {
  changesOf,
  decodeDefinition,
  encodeDefinition,
  redefined,
  undefinedQueue,
} from '../../job/stored-definition.ts'
import { noKeyToLimit, noQueueToLimit, onDeadCycle } from '../refusals.ts'
import type { DefinedQueue, DefinitionRecord } from '../store.ts'
import type { Row, Value } from './connection/call.ts'
import { texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { withRetry } from './connection/failures.ts'
import type { StoreContext } from './enqueue.ts'
import { lowerLimits } from './limits/lower.ts'

/**
 * Also opens the lanes of these queues and of the queues of their notices, so that later calls find most of them open. A
 * busy lane is left to those calls.
 */
export async function define(context: StoreContext, queues: readonly QueueSettings[]): Promise<DefinedQueue[]> {
  const { db, lanes, definitions, polls } = context
  const defined: DefinedQueue[] = []
  for (const settings of queues) {
    const answer = await polls.until(() => storeDefinition(db, settings))
    if (settings.limits?.limit != null) await awaitClaims(db, settings.name)
    if (settings.limits?.keyLimit != null) await lowerLimits(context, settings.name, { waits: true })
    definitions.remember(settings, answer.version)
    if (answer.version !== answer.versionBefore) lanes.forgetQueue(settings.name)
    defined.push(answer)
  }
  const names = queues.flatMap(({ name, onDead, onEnd }) => [name, onDead ?? [], onEnd ?? []].flat())
  await lanes.openNow(names.map((queue) => ({ queue, priority: null })))
  return defined
}

/**
 * Another open transaction may have inserted or locked the row of this queue. Then the statement gives up after 20 ms, releases
 * all its locks, and is made again later (`lock-polls.ts`). So a definition that waits holds no connection, and does not hold
 * the lock that all definitions with a new `onDead` need.
 */
export function changeQueue({ db, polls }: StoreContext, text: string, values: readonly Value[]): Promise<Row[]> {
  return polls.until(() => withRetry(() => db.once(text, values), { failFast: true }))
}

/**
 * Fails with a collision if another open transaction has locked the row of this queue. `lost`: the version that the server has
 * lost. A queue that has that version, or a later one, stays as it is.
 */
export async function storeDefinition(
  db: Database,
  settings: QueueSettings,
  lost: number | null = null,
): Promise<DefinedQueue> {
  const store = () => db.once(defineQueue, [...definitionOf(settings), lost])
  const [row] = await withRetry(store, { failFast: true }).catch(rethrowOnDeadCycle)
  return toDefined(settings.name, row)
}

function toDefined(queue: string, row: Row | undefined): DefinedQueue {
  const [before, after] = [decodeDefinition(row?.[2] ?? null), decodeDefinition(row?.[3] ?? null)]
  const [versionBefore, version] = [Number(row?.[0]), Number(row?.[1])]
  return { queue, version, versionBefore, changes: before && after ? changesOf(before, after) : [] }
}

/** Waits for claims that began before the last change of this queue was committed. After that, every claim follows the change. */
export async function awaitClaims(db: Database, queue: string): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const [row] = await db.query('select holdfast.await_claims($1, $2)', [queue, after])
    after = row?.[0] == null ? null : Number(row[0])
  }
}

/** The same after a change of all queues: one statement for each 64 lanes that claims are at work in. */
export async function awaitAllClaims(db: Database): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const [row] = await db.query('select holdfast.await_all_claims($1)', [after])
    after = row?.[0] == null ? null : Number(row[0])
  }
}

/** HF008: the `onDead` queues would form a cycle. The error names it. */
export function rethrowOnDeadCycle(error: unknown): never {
  const { code, detail } = error as { readonly code?: unknown; readonly detail?: unknown }
  throw code === 'HF008' ? toError(onDeadCycle(JSON.parse(String(detail)))) : error
}

/** For a caller's transaction: a queue that has a definition keeps it. */
export function defineIfNew(settings: QueueSettings): { readonly text: string; readonly values: readonly Value[] } {
  const text =
    'select version::text as defined from holdfast.define_queue($1::text, $2::text::jsonb, $3::boolean, true)'
  return { text, values: definitionOf(settings) }
}

const defineQueue = 'select * from holdfast.define_queue($1, $2::jsonb, $3, false, true, $4)'

function definitionOf(settings: QueueSettings): readonly Value[] {
  return [settings.name, encodeDefinition(redefined(null, settings)), settings.limits !== null]
}

/** For a definition that cannot be decoded, the defaults count. */
export async function readDefinitions(db: Database, queues: readonly string[] | null): Promise<DefinitionRecord[]> {
  const rows = await db.query(
    'select name, version, definition::text from holdfast.queue where $1::text[] is null or name = any ($1) order by name',
    [queues && texts(queues)],
  )
  return rows.map(([queue, version, text]) => ({
    queue: queue as string,
    version: Number(version),
    definition: decodeDefinition(text ?? null) ?? undefinedQueue,
  }))
}

/** After the answer, every claim follows the new limits. */
export async function overrideLimit(
  context: StoreContext,
  queue: string,
  override: LimitOverride | null,
): Promise<void> {
  const values = [queue, override && JSON.stringify(override)]
  const text = 'select holdfast.override_limit($1, $2::jsonb, true)'
  await changeQueue(context, text, values).catch((error: unknown) => {
    const { code } = error as { readonly code?: unknown }
    if (code === 'HF009') throw toError(noQueueToLimit(queue))
    throw code === 'HF010' ? toError(noKeyToLimit(queue)) : error
  })
  await awaitClaims(context.db, queue)
  await lowerLimits(context, queue, { waits: true })
}

/** A limit from three columns of a row: concurrency, count and window of the rate. */
export function limitOf(row: Row | undefined, at: number): Limit | null {
  const [concurrency, count, windowMs] = (row ?? []).slice(at, at + 3)
  if (concurrency == null && count == null) return null
  return {
    concurrency: concurrency == null ? null : Number(concurrency),
    rate: count == null ? null : { count: Number(count), windowMs: Number(windowMs) },
  }
}
