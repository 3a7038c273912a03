// A queue's definition and an operator's override of its limits; see `migrations/0015-definitions.ts`.

import { defaults } from '../../job/bounds.ts'
import type { LimitOverride } from '../../job/limit-key.ts'
import type { Limit, QueueSettings } from '../../job/record.ts'
import {
  changesOf,
  decodeDefinition,
  encodeDefinition,
  redefined,
  undefinedQueue,
} from '../../job/stored-definition.ts'
import type { DefinedQueue, DefinitionRecord } from '../store.ts'
import type { Row } from './call.ts'
import { texts } from './columns.ts'
import type { Database } from './database.ts'
import type { Desk } from './enqueue.ts'

export async function define({ db }: Desk, queues: readonly QueueSettings[]): Promise<DefinedQueue[]> {
  const defined: DefinedQueue[] = []
  for (const settings of queues) {
    const text = 'select * from holdfast.define_queue($1, $2::jsonb, $3)'
    const values = [settings.name, encodeDefinition(redefined(null, settings)), settings.limits !== null]
    const [row] = await db.query(text, values)
    const [before, after] = [decodeDefinition(row?.[2] ?? null), decodeDefinition(row?.[3] ?? null)]
    const [versionBefore, version] = [Number(row?.[0]), Number(row?.[1])]
    defined.push({
      queue: settings.name,
      version,
      versionBefore,
      changes: before && after ? changesOf(before, after) : [],
    })
  }
  return defined
}

/** Where it was damaged, the defaults count. */
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

export async function overrideLimit({ db }: Desk, queue: string, override: LimitOverride | null): Promise<void> {
  const values = [queue, override && JSON.stringify(override), defaults.retainDoneMs, defaults.retainDeadMs]
  await db.query('select holdfast.override_limit($1, $2::jsonb, $3, $4)', values)
}

/** Three columns of a row: how many at once, how many starts, within which time. */
export function limitOf(row: Row | undefined, at: number): Limit | null {
  const [concurrency, count, windowMs] = (row ?? []).slice(at, at + 3)
  if (concurrency == null && count == null) return null
  return {
    concurrency: concurrency == null ? null : Number(concurrency),
    rate: count == null ? null : { count: Number(count), windowMs: Number(windowMs) },
  }
}
