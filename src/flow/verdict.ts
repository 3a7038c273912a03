// What a flow's function may return instead of a result, to say how its run ends. Verdicts are plain values, as fates are.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { clip } from '../job/error.ts'
import { checkOptions, checkOutcome } from '../job/names.ts'
import type { JobError } from '../job/record.ts'
import type { Effects, FollowUp } from '../queue/effects.ts'
import type { Webhooks } from '../webhook/webhooks.ts'

/** A call to a URL that says how the run has ended. It is delivered by the webhooks of the flow's definition. */
export interface EndWebhook {
  readonly url: string | URL
  /** The name of what has happened, such as `document.done`. */
  readonly event: string
}

/** Written in the transaction that ends the run. */
export interface EndOptions<Item extends FollowUp = FollowUp> {
  readonly effects?: Effects<Item>
  readonly webhook?: EndWebhook
}

export interface DoneOptions<Item extends FollowUp = FollowUp> extends EndOptions<Item> {
  /** A name such as `saved` or `duplicate`. */
  readonly outcome?: string
}

interface Succeeded<Result = unknown> {
  readonly verdict: 'succeeded'
  readonly result: Result
  readonly options: DoneOptions
}

interface Failed {
  readonly verdict: 'failed'
  readonly reason: string
  readonly options: EndOptions
}

interface Cancelled {
  readonly verdict: 'cancelled'
  readonly reason: string | null
  readonly options: EndOptions
}

/** How the function has decided that its run ends. */
export type FlowVerdict<Result = unknown> = Succeeded<Result> | Failed | Cancelled

const verdicts = new WeakSet<object>()

export function succeeded<Result>(result: Result, options: DoneOptions = {}): FlowVerdict<Result> {
  checkOptions(options, 'done options', ['effects', 'webhook', 'outcome'])
  if (options.outcome !== undefined) checkOutcome(options.outcome, 'outcome')
  return made({ verdict: 'succeeded', result, options: checked(options) })
}

export function failed(reason: string, options: EndOptions = {}): FlowVerdict<never> {
  checkOptions(options, 'fail options', ['effects', 'webhook'])
  return made({ verdict: 'failed', reason: checkReason(reason), options: checked(options) })
}

export function cancelled(reason: string | null, options: EndOptions = {}): FlowVerdict<never> {
  checkOptions(options, 'cancel options', ['effects', 'webhook'])
  return made({ verdict: 'cancelled', reason: reason === null ? null : checkReason(reason), options: checked(options) })
}

/** Only values that were made here are verdicts: a result of the application may have the same shape. */
export function isVerdict(value: unknown): value is FlowVerdict {
  return typeof value === 'object' && value !== null && verdicts.has(value)
}

/** The error of a run that has ended so; null: it has succeeded. */
export function errorOf(verdict: FlowVerdict): JobError | null {
  if (verdict.verdict === 'succeeded' || verdict.reason === null) return null
  if (verdict.verdict === 'failed') return { name: 'FlowFailed', code: 'FLOW_FAILED', message: verdict.reason }
  return { name: 'FlowCancelled', message: verdict.reason }
}

/** The effects of the end, with the call of its webhook. */
export function effectsOf(verdict: FlowVerdict, run: EndedRun): Effects | null {
  const { effects, webhook } = verdict.options
  if (webhook === undefined) return effects ?? null
  if (run.webhooks === null) {
    const message = `Flow ${run.flow} has no webhooks: give defineFlow the option webhooks, made by defineWebhooks.`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'webhook', flow: run.flow })
  }
  const said = verdict.verdict === 'succeeded' ? { result: verdict.result ?? null } : { reason: verdict.reason }
  const body = { event: webhook.event, id: run.id, flow: run.flow, state: verdict.verdict, ...said }
  const call = run.webhooks.effect(webhook.url, body)
  return { ...effects, enqueue: [...(effects?.enqueue ?? []), call] } as Effects
}

interface EndedRun {
  readonly id: string
  readonly flow: string
  readonly webhooks: Webhooks | null
}

function checked<O extends EndOptions>(options: O): O {
  const { webhook } = options
  if (webhook === undefined) return options
  checkOptions(webhook, 'webhook', ['url', 'event'])
  checkOutcome(webhook.event, 'webhook.event')
  return options
}

function checkReason(reason: unknown): string {
  const text = clip(String(reason), bounds.errorTextBytes / 4)
  if (text !== '') return text
  throw new HoldfastError('INVALID_OPTION', 'reason is a text that says why.', { option: 'reason' })
}

function made<V extends FlowVerdict>(verdict: V): V {
  verdicts.add(verdict)
  return verdict
}
