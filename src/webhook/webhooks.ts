// Webhooks: a queue whose jobs are HTTP calls. A call that is enqueued as an effect is sent only if the settlement that it
// announces was committed. From then on it is a job like any other: leased, retried, finally dead, and requeued by hand.
//
//   2xx                          done; the status and the beginning of the answer are the result
//   5xx, 408, 429, no answer     retried: after the delay in Retry-After, or by the backoff
//   anything else, a bad address dead at once
//
// A call is delivered at least once. If a worker dies between the answer and the settlement, the call is delivered again, with
// the same id. So receivers should store ids.

import { isHoldfastError } from '../errors.ts'
import type { DeliveryFacts } from '../events.ts'
import { isPermanent, Permanent } from '../lease/permanent.ts'
import { RetryLater } from '../lease/retry-later.ts'
import { defineQueue, type QueueDefinition } from '../queue/definition.ts'
import type { FollowUp } from '../queue/effects.ts'
import type { EnqueueOptions } from '../queue/prepare.ts'
import type { Queue } from '../queue/queue.ts'
import type { Enqueued } from '../store/store.ts'
import { Job } from '../worker/job.ts'
import type { Handler, WorkOptions } from '../worker/options.ts'
import type { Worker } from '../worker/worker.ts'
import { type Answered, deliver } from './deliver.ts'
import { HostLimit } from './host-limit.ts'
import {
  type CallOptions,
  checkCall,
  toCall,
  toWebhookPlan,
  type WebhookCall,
  type WebhookPlan,
  type WebhooksOptions,
} from './options.ts'
import { retryAfterMs } from './retry-after.ts'
import { SafeConnect } from './safe-connect.ts'
import { signatureHeaders } from './signature.ts'

/** The result of a delivery. */
export interface WebhookAnswer {
  readonly status: number
  /** The beginning of the answer: at most 1 KiB. */
  readonly body: string
}

export type WebhookQueue = QueueDefinition<WebhookCall, WebhookCall, WebhookAnswer, WebhookAnswer>
export type WebhookOptions = CallOptions & Omit<EnqueueOptions, 'headers'>

/** The part of the client that webhooks need. */
export interface WebhookClient {
  queue(definition: WebhookQueue): Queue<WebhookCall, WebhookCall, WebhookAnswer, WebhookAnswer>
  work(definition: WebhookQueue, handler: Handler<WebhookCall, WebhookAnswer>, options?: WorkOptions): Worker
}

/** How long a delivery waits for a slot of its host, and for how long its job is snoozed after that. */
const placeMs = 2_000
const putOffMs = 5_000
/** Added to the timeout, for everything but the delivery itself. */
const aroundMs = 5_000

/** Needs no connection: share it between the processes that enqueue calls and those that deliver them. */
export function defineWebhooks(options: WebhooksOptions): Webhooks {
  return new Webhooks(toWebhookPlan(options))
}

export class Webhooks {
  readonly queue: WebhookQueue
  readonly #plan: WebhookPlan
  readonly #safeConnect: SafeConnect
  readonly #hosts: HostLimit

  constructor(plan: WebhookPlan) {
    this.#plan = plan
    this.#safeConnect = new SafeConnect(plan.rules)
    this.#hosts = new HostLimit(plan.perHost)
    const timeout = plan.timeoutMs + placeMs + aroundMs
    const definition = defineQueue<WebhookCall, WebhookAnswer>(plan.queue, { ...plan.behaviour, timeout })
    this.queue = { ...definition, factsInto: 'body' }
  }

  /** The payload of a call: `job.effects.enqueue(webhooks.queue, webhooks.call(url, body))`. */
  call(url: string | URL, body: unknown, options: CallOptions = {}): WebhookCall {
    return toCall(url, body, options)
  }

  /** The same as an effect: `lease.done(result, { enqueue: [webhooks.effect(url, body)] })`; or as a batch's `onComplete`. */
  effect(url: string | URL, body: unknown, options: Omit<WebhookOptions, 'tx'> = {}): FollowUp {
    const { call, enqueue } = parted(options)
    return { ...enqueue, queue: this.queue, payload: toCall(url, body, call) }
  }

  /** Once this has resolved, the call will be delivered; with `tx`, once your transaction has committed. */
  async enqueue(on: WebhookClient, url: string | URL, body: unknown, options: WebhookOptions = {}): Promise<Enqueued> {
    const { call, enqueue } = parted(options)
    return on.queue(this.queue).enqueue(toCall(url, body, call), enqueue)
  }

  /** Delivers calls until the worker is stopped. */
  work(on: WebhookClient, options: WorkOptions = {}): Worker {
    return on.work(this.queue, this.handler, options)
  }

  /** For `holdfast.work(webhooks.queue, webhooks.handler)`, beside other queues. */
  readonly handler: Handler<WebhookCall, WebhookAnswer> = async (job) => {
    const call = required(job.payload)
    const url = new URL(call.url)
    const leave = await this.#hosts.enter(url.host, placeMs, job.signal)
    if (!leave) return job.snooze(putOffMs * (0.5 + Math.random()))
    const startedAt = performance.now()
    let [status, outcome]: [number | null, DeliveryFacts['outcome']] = [null, 'done']
    try {
      const answer = await this.#deliver(job.id, call, url, job.signal)
      status = answer.status
      return this.#judge(answer)
    } catch (error) {
      outcome = job.signal.aborted ? 'aborted' : isPermanent(error) ? 'dead' : 'retry'
      throw error
    } finally {
      leave()
      Job.delivered(job as Job, { host: url.host, status, outcome, durationMs: performance.now() - startedAt })
    }
  }

  async #deliver(id: string, call: WebhookCall, url: URL, signal: AbortSignal): Promise<Answered> {
    const { body, contentType, headers: ownHeaders } = call
    const { timeoutMs } = this.#plan
    const signed = signatureHeaders(id, body, await this.#plan.secretsFor(call), Date.now())
    const headers = { 'user-agent': 'holdfast', 'content-type': contentType, ...signed }
    const inTime = AbortSignal.timeout(timeoutMs)
    try {
      return await deliver(
        { url, body, headers, ownHeaders, signal: AbortSignal.any([signal, inTime]) },
        this.#safeConnect,
      )
    } catch (error) {
      signal.throwIfAborted()
      if (inTime.aborted) throw new Error(`${url.host} did not answer within ${timeoutMs} ms.`, { cause: error })
      throw error
    }
  }

  #judge({ url, status, body, retryAfter }: Answered): WebhookAnswer {
    if (status >= 200 && status <= 299) return { status, body }
    const sentence = `${url.host} answered ${status}${body === '' ? '' : `: ${body}`}`
    if (status < 500 && status !== 408 && status !== 429) throw new Permanent(sentence)
    const delayMs = retryAfterMs(retryAfter, Date.now())
    if (delayMs === null) throw new Error(sentence)
    throw new RetryLater(sentence, { delay: Math.min(delayMs, this.#plan.retryAfterMaxMs) })
  }
}

function parted({ contentType, headers, ...enqueue }: WebhookOptions) {
  return {
    call: { ...(contentType !== undefined && { contentType }), ...(headers !== undefined && { headers }) },
    enqueue,
  }
}

/** An invalid call is a permanent error, because no later attempt can succeed. */
function required(call: WebhookCall): WebhookCall {
  try {
    return checkCall(call)
  } catch (error) {
    throw isHoldfastError(error) ? new Permanent(error.message, { cause: error }) : error
  }
}
