// What a change makes of a waiting job. Pure, and the same for both engines: an engine reads the job under its locks, asks here,
// and writes the answer.
//
// A limit key or a label is either stated, by the enqueue or an earlier change, or found in the payload by the stored definition.
// The store does not remember which. So what the old payload explains counts as found, and follows the new payload. Anything else
// counts as stated, and stays. A value that was stated and is also what the definition finds therefore follows the payload.

import { isRefused, type Refused } from '../errors.ts'
import { decodeJson } from '../job/codec.ts'
import { decodeLabels, encodeLabels, isUnfit, type LabelRules, resolveLabels } from '../job/labels.ts'
import { type KeyRule, resolveKey } from '../job/limit-key.ts'
import type { ChangeByHand, ChangedPart } from '../job/record.ts'
import { encodeChange, replaceHeaders } from '../job/stored.ts'
import { changeNeedsKey, tooFewAttempts, unfitLabel } from './refusals.ts'
import type { ChangeRequest } from './store.ts'

/** A waiting job as it is stored, and the rules of its queue's definition. */
export interface ChangeableJob {
  readonly id: string
  readonly queue: string
  readonly keyRule: KeyRule
  readonly labelRules: LabelRules | null
  /** Attempts that it has used. */
  readonly attempts: number
  readonly maxAttempts: number
  readonly payload: string
  readonly headers: string | null
  /** JSON text. */
  readonly labels: string | null
  readonly limitKey: string | null
  readonly past: string | null
}

export type ChangedJob = Pick<ChangeableJob, 'maxAttempts' | 'payload' | 'headers' | 'labels' | 'limitKey'> & {
  readonly past: string
}

export function changeJob(job: ChangeableJob, request: ChangeRequest, now: number): ChangedJob | Refused {
  const { payload = job.payload, attempts = job.maxAttempts } = request
  if (request.attempts !== undefined && attempts <= job.attempts) return tooFewAttempts(job.id, attempts, job.attempts)
  const limitKey = limitKeyAfter(job, request)
  if (limitKey === undefined) return changeNeedsKey(job.id, job.queue, pathOf(job.keyRule))
  const labels = labelsAfter(job, request)
  if (isRefused(labels)) return labels
  const change: ChangeByHand = { as: 'changed', by: request.by, at: now, what: partsOf(request) }
  return {
    maxAttempts: attempts,
    payload,
    headers: request.headers === undefined ? job.headers : replaceHeaders(job.headers, request.headers),
    labels,
    limitKey,
    past: encodeChange(job.past, change),
  }
}

/** Undefined: it cannot be known. */
function limitKeyAfter(job: ChangeableJob, { payload, limitKey }: ChangeRequest): string | null | undefined {
  if (limitKey !== undefined) return limitKey
  const { keyRule } = job
  if (payload === undefined || keyRule === null) return job.limitKey
  if (keyRule === 'code') return undefined
  const isFound =
    job.limitKey !== null && isJson(job.payload) && resolveKey(keyRule, { payload: job.payload }) === job.limitKey
  return isFound ? resolveKey(keyRule, { payload }) : job.limitKey
}

function labelsAfter(job: ChangeableJob, request: ChangeRequest): string | null | Refused {
  const { payload = job.payload } = request
  if (request.payload === undefined && request.labels === undefined) return job.labels
  const stated = request.labels === undefined ? statedLabels(job) : request.labels
  if (!isJson(payload)) return stated // a damaged payload, which this request does not replace, has no labels
  const labels = resolveLabels(job.labelRules, { labels: stated, payload })
  return isUnfit(labels) ? unfitLabel(job.queue, labels) : labels
}

/** The labels of the job that its payload does not explain. */
function statedLabels({ labelRules, labels, payload }: ChangeableJob): string | null {
  if (labelRules === null || labels === null || !isJson(payload)) return labels
  const found = resolveLabels(labelRules, { payload, madeByStore: true })
  const explained = isUnfit(found) ? {} : decodeLabels(found)
  const isStated = ([name, value]: readonly [string, string]) =>
    !(Object.hasOwn(explained, name) && explained[name] === value)
  return encodeLabels(Object.fromEntries(Object.entries(decodeLabels(labels)).filter(isStated)))
}

function partsOf(request: ChangeRequest): ChangedPart[] {
  const parts: readonly ChangedPart[] = ['payload', 'attempts', 'headers', 'labels', 'limitKey']
  return parts.filter((part) => request[part] !== undefined)
}

function pathOf(rule: KeyRule): string | null {
  return typeof rule === 'object' && rule !== null ? rule.path : null
}

/** No JSON text reads as itself. */
function isJson(text: string): boolean {
  return decodeJson(text) !== text
}
