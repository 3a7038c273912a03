// A record of every run of a worker, for assertions of a test. Events say how each run ended. A middleware around all others
// records what the handler got and what it returned.

import type { EventName, HoldfastEvents } from '../events.ts'
import type { Holdfast } from '../holdfast.ts'
import { decodeJson } from '../job/codec.ts'
import type { JobError } from '../job/record.ts'
import type { ClaimedJob } from '../store/store.ts'
import { isFate, isFlowEnd } from '../worker/fate.ts'
import type { Middleware } from '../worker/options.ts'

/** `lost`: the lease was lost, so this run could not settle the job. */
export type RunOutcome = 'done' | 'dead' | 'retried' | 'snoozed' | 'released' | 'cancelled' | 'lost'

/** One run of one job. */
export interface RunRecord<Payload = unknown, Result = unknown> {
  readonly id: string
  readonly queue: string
  /** As the handler got it, or as it is stored if no handler could be called with it. */
  readonly payload: Payload
  readonly attempt: number
  readonly outcome: RunOutcome
  /** The result of a done job; null: it has none, or the job is not done. */
  readonly result: Result | null
  /** Why it did not succeed; null if it did. */
  readonly error: JobError | null
  /** When it is due again, if it waits for a time. */
  readonly runAt: Date | null
  /** The label of `job.outcome(label)`. */
  readonly label: string | null
  readonly warning: string | null
}

type OpenRecord = { -readonly [Field in keyof RunRecord]: RunRecord[Field] } & { returned: unknown }

const outcomes: { readonly [Name in EventName]?: RunOutcome } = {
  'job.done': 'done',
  'job.dead': 'dead',
  'job.retrying': 'retried',
  'job.snoozed': 'snoozed',
  'job.released': 'released',
  'job.cancelled': 'cancelled',
  'lease.lost': 'lost',
}

export class RunRecords {
  /** In the order in which they were claimed. */
  readonly #records: OpenRecord[] = []
  readonly #underWay = new Map<string, OpenRecord>()
  readonly #worker: string
  readonly #unsubscribe: () => void

  constructor(holdfast: Holdfast, worker: string) {
    this.#worker = worker
    this.#unsubscribe = holdfast.onAll((name, event) => this.#record(name, event))
  }

  claimed(jobs: readonly ClaimedJob[]): void {
    for (const { id, queue, payload, attempt } of jobs) {
      const record: OpenRecord = {
        ...{ id, queue, payload: decodeJson(payload), attempt },
        ...{ outcome: 'lost', result: null, error: null, runAt: null, label: null, warning: null },
        returned: undefined,
      }
      this.#records.push(record)
      this.#underWay.set(id, record)
    }
  }

  readonly middleware: Middleware = async (job, next) => {
    const record = this.#underWay.get(job.id)
    if (record) record.payload = job.payload
    const returned = await next()
    if (record) record.returned = returned
    return returned
  }

  all(): RunRecord[] {
    return this.#records.map(({ returned, ...record }) => record)
  }

  /** Stops recording. */
  close(): void {
    this.#unsubscribe()
  }

  #record<Name extends EventName>(name: Name, event: HoldfastEvents[Name]): void {
    const { id, worker, ...facts } = event as { readonly id?: string; readonly worker?: string } & Partial<RunRecord>
    const record = worker === this.#worker ? this.#underWay.get(id as string) : undefined
    const outcome = outcomes[name]
    if (!record || !outcome) return
    this.#underWay.delete(record.id)
    record.outcome = outcome
    record.error = facts.error ?? null
    record.runAt = facts.runAt ?? null
    if (outcome !== 'done') return
    record.result = resultOf(record.returned)
    record.label = (event as HoldfastEvents['job.done']).outcome
    record.warning = (event as HoldfastEvents['job.done']).warning
  }
}

function resultOf(returned: unknown): unknown {
  if (isFlowEnd(returned)) {
    const { settlement } = returned
    return settlement.as === 'done' && settlement.result !== null ? decodeJson(settlement.result) : null
  }
  const result = isFate(returned) && returned.fate === 'outcome' ? returned.result : returned
  return result ?? null
}
