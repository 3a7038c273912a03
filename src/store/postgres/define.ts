// What the store keeps of a queue's definition.

import { toError } from '../../errors.ts'
import { defaults } from '../../job/bounds.ts'
import type { Limit, QueueSettings } from '../../job/record.ts'
import { onDeadCycle } from '../refusals.ts'
import type { Value } from './call.ts'
import type { Database } from './database.ts'
import type { Desk } from './enqueue.ts'

/** Opens the lanes that jobs of these queues and notices of their deaths go to, so that later calls find them open. */
export async function define({ db, lanes }: Desk, queues: readonly QueueSettings[]): Promise<void> {
  for (const settings of queues) {
    await db.query(defineQueue, definitionOf(settings)).catch(throwRefused)
    if (settings.limit !== null) await awaitClaims(db, settings.name)
  }
  const names = queues.flatMap(({ name, onDead }) => [name, ...(onDead === null ? [] : [onDead])])
  await lanes.openNow(names.map((queue) => ({ queue, priority: defaults.priority })))
}

/** What was committed for this queue goes for every claim from now on: those that know nothing of it yet are waited for. */
export async function awaitClaims(db: Database, queue: string): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const [row] = await db.query('select holdfast.await_claims($1, $2)', [queue, after])
    after = row?.[0] == null ? null : Number(row[0])
  }
}

/** Deaths would be told in a circle: says which. */
export function throwRefused(error: unknown): never {
  const { code, detail } = error as { readonly code?: unknown; readonly detail?: unknown }
  throw code === 'HF008' ? toError(onDeadCycle(JSON.parse(String(detail)))) : error
}

/** For a caller's transaction: a queue that is defined already stays as it is. */
export function defineIfNew(settings: QueueSettings): { readonly text: string; readonly values: readonly Value[] } {
  return { text: `${defineQueue.slice(0, -1)}, true)::text as defined`, values: definitionOf(settings) }
}

/** Types are said, because a caller's driver may not know them. */
const defineQueue = `select holdfast.define_queue($1::text, $2::bigint, $3::bigint, $4::text, $5::int, $6::int, $7::bigint,
  $8::int, $9::int, $10::bigint)`

function definitionOf({ name, retainDoneMs, retainDeadMs, onDead, limit, keyLimit }: QueueSettings): readonly Value[] {
  return [name, finite(retainDoneMs), finite(retainDeadMs), onDead, ...bounds(limit), ...bounds(keyLimit)]
}

function bounds(limit: Limit | null): (number | null)[] {
  return [limit?.concurrency ?? null, limit?.rate?.count ?? null, limit?.rate?.windowMs ?? null]
}

function finite(ms: number): number | null {
  return Number.isFinite(ms) ? ms : null
}
