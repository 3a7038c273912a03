// From a declaration in code to the stored definition. Everything that could fail at a slot is refused here.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { byteLength } from '../job/codec.ts'
import { checkGiven, checkOptions } from '../job/names.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import { type EnqueueOptions, prepareJob } from '../queue/prepare.ts'
import { type PayloadField, type QueueReference, toDefinition } from '../queue/reference.ts'
import { show } from '../runtime/duration.ts'
import { checkCron } from './cron.ts'
import { type MissedPolicy, policies, type ScheduleDefinition, type StoredSchedule } from './stored-schedule.ts'

/** Without options for an id, a transaction, a time or an idempotency key: a slot's job is enqueued once, at its slot. */
type SlotJobOptions = Omit<EnqueueOptions, 'id' | 'tx' | 'runAt' | 'startBefore' | 'idempotencyKey'>

export type ScheduleOptions<Payload = unknown> = SlotTimes & { readonly queue: QueueReference<Payload> } & PayloadField<
    NoInfer<Payload>
  >

interface SlotTimes extends SlotJobOptions {
  /** Five fields (minute first), six (second first), or a nickname such as `@daily`. */
  readonly cron: string
  /** An IANA name; UTC unless given. */
  readonly timeZone?: string
  /** Slots that no process fired in time: skipped (`'skip'`, default), one job for all (`'once'`), or one for each (`'all'`). */
  readonly missed?: MissedPolicy
}

export interface CheckedSchedule {
  readonly queue: AnyDefinition
  readonly definition: ScheduleDefinition
}

const jobOptionNames = ['delay', 'priority', 'attempts', 'timeout', 'dedup', 'headers', 'limitKey', 'labels'] as const
const optionNames = ['cron', 'timeZone', 'queue', 'payload', 'missed', ...jobOptionNames]

export async function checkSchedule(options: ScheduleOptions): Promise<CheckedSchedule> {
  checkOptions(options, 'schedule options', optionNames)
  checkGiven(options, 'holdfast.schedule', { cron: "'30 2 * * *'", queue: "'reports'" })
  const { cron, timeZone = 'UTC', queue, payload, missed = 'skip', ...jobOptions } = options
  const times = checkCron(cron, timeZone)
  if (!policies.includes(missed)) {
    const wanted = `missed must be one of ${policies.map((policy) => `'${policy}'`).join(', ')}; got ${show(missed)}.`
    throw new HoldfastError('INVALID_OPTION', wanted, { option: 'missed', value: missed })
  }
  const definition = toDefinition(queue)
  const { id, idGiven, runAt, startBefore, idempotency, madeByStore, kv, ...job } = await prepareJob(
    definition,
    payload,
    jobOptions,
  )
  return { queue: definition, definition: { ...times, missed, job } }
}

/** Bounded, because the whole entry is read in every round. */
export function encodeSchedule(schedule: StoredSchedule): string {
  const text = JSON.stringify(schedule)
  const bytes = byteLength(text)
  if (bytes <= bounds.kvValueBytes) return text
  const sentence = `A schedule with its payload may have at most ${bounds.kvValueBytes} bytes; this one has ${bytes}. Pass a reference.`
  throw new HoldfastError('PAYLOAD_TOO_LARGE', sentence, { bytes, maxBytes: bounds.kvValueBytes })
}
