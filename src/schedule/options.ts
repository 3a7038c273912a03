// From what code says of a schedule to what is stored of it: everything that could go wrong at a slot is refused here.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { byteLength } from '../job/codec.ts'
import { checkOptions } from '../job/names.ts'
import { type AnyDefinition, type QueueDefinition, toDefinition } from '../queue/definition.ts'
import { type EnqueueOptions, prepareJob } from '../queue/prepare.ts'
import { show } from '../runtime/duration.ts'
import { checkCron } from './cron.ts'
import { type MissedPolicy, policies, type ScheduleDefinition, type StoredSchedule } from './stored-schedule.ts'

/** A slot's job is enqueued at its slot and once, so what would say when, or that it is the same, has no place here. */
type SlotJobOptions = Omit<EnqueueOptions, 'id' | 'tx' | 'runAt' | 'startBefore' | 'idempotencyKey'>

export interface ScheduleOptions<Payload = unknown> extends SlotJobOptions {
  /** Five fields (minute first), six (second first), or a nickname such as `@daily`. */
  readonly cron: string
  /** An IANA name; UTC unless given. */
  readonly timeZone?: string
  // biome-ignore lint/suspicious/noExplicitAny: what a handler gets and gives does not matter to whoever enqueues
  readonly queue: string | QueueDefinition<Payload, any, any, any>
  readonly payload?: NoInfer<Payload>
  /** Slots that nobody was there to fire: `'skip'` (default), one job for all of them (`'once'`), or each (`'all'`). */
  readonly missed?: MissedPolicy
}

export interface CheckedSchedule {
  readonly queue: AnyDefinition
  readonly definition: ScheduleDefinition
}

const jobOptionNames = ['delay', 'priority', 'attempts', 'timeout', 'dedup', 'headers', 'limitKey'] as const
const optionNames = ['cron', 'timeZone', 'queue', 'payload', 'missed', ...jobOptionNames]

export async function checkSchedule(options: ScheduleOptions): Promise<CheckedSchedule> {
  checkOptions(options, 'schedule options', optionNames)
  const { cron, timeZone = 'UTC', queue, payload, missed = 'skip', ...jobOptions } = options
  const times = checkCron(cron, timeZone)
  if (!policies.includes(missed)) {
    const wanted = `missed is ${policies.map((policy) => `'${policy}'`).join(', ')}; got ${show(missed)}.`
    throw new HoldfastError('INVALID_OPTION', wanted, { option: 'missed', value: missed })
  }
  const definition = toDefinition(queue)
  const { id, idGiven, runAt, startBefore, idempotency, ...job } = await prepareJob(definition, payload, jobOptions)
  return { queue: definition, definition: { ...times, missed, job } }
}

/** What is stored is what is read in one piece, at every look. */
export function encodeSchedule(schedule: StoredSchedule): string {
  const text = JSON.stringify(schedule)
  const bytes = byteLength(text)
  if (bytes <= bounds.kvValueBytes) return text
  const sentence = `A schedule holds at most ${bounds.kvValueBytes} bytes with its payload; this one has ${bytes}. Pass a reference.`
  throw new HoldfastError('PAYLOAD_TOO_LARGE', sentence, { bytes, maxBytes: bounds.kvValueBytes })
}
