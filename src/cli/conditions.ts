// The flags that say which jobs a command is about.

import type { JobConditions } from '../client/filter.ts'
import { parseJson } from '../job/json.ts'
import type { JobState } from '../job/record.ts'
import { given, type Option, type Options, pairOf, rangeOf, UsageError } from './command.ts'

export const conditionOptions: Readonly<Record<string, Option>> = {
  queue: { value: 'name', multiple: true, says: 'only jobs of this queue; repeat it for several' },
  state: {
    value: 'state',
    multiple: true,
    says: 'held, scheduled, ready, running, done, dead or cancelled; may be repeated',
  },
  id: { value: 'id', multiple: true, says: 'the job with this id; may be repeated' },
  'enqueued-since': {
    value: 'time',
    says: 'enqueued at this time or later: 2030-01-31, 2030-01-31T09:00:00Z, or 1h (ago)',
  },
  'enqueued-before': { value: 'time', says: 'enqueued before this time' },
  'started-since': { value: 'time', says: 'whose newest attempt started at this time or later' },
  'started-before': { value: 'time', says: 'whose newest attempt started before this time' },
  'ended-since': { value: 'time', says: 'ended at this time or later' },
  'ended-before': { value: 'time', says: 'ended before this time' },
  error: { value: 'text', says: 'whose error, or a cause of it, contains this text in its name, message or code' },
  'error-group': { value: 'group', says: 'dead jobs of this group; holdfast dead-groups lists the groups' },
  label: { value: 'name=value', multiple: true, says: 'with this label; may be repeated' },
  batch: { value: 'id', says: 'only items of this batch' },
  'limit-key': { value: 'key', says: 'with this limit key' },
  'dedup-key': { value: 'key', says: 'with this dedup key' },
  'idempotency-key': { value: 'key', says: 'with this idempotency key' },
  worker: { value: 'name', says: 'whose newest attempt is or was run by this worker' },
  attempts: { value: 'n', says: 'with so many attempts: 3, 3.. (at least), ..3 (at most) or 2..4' },
  payload: {
    value: 'path=value',
    says: 'whose payload has this value at the path: customer.id=c1, count=3, flag=true',
  },
}

export function toConditions(options: Options): JobConditions {
  const list = (name: string) => (options.texts(name).length === 0 ? undefined : options.texts(name))
  return given({
    queue: list('queue'),
    state: list('state') as readonly JobState[] | undefined,
    ids: list('id'),
    enqueued: rangeOf(options, 'enqueued'),
    started: rangeOf(options, 'started'),
    ended: rangeOf(options, 'ended'),
    error: options.text('error'),
    errorGroup: options.text('error-group'),
    labels: toLabels(options.texts('label')),
    batch: options.text('batch'),
    limitKey: options.text('limit-key'),
    dedupKey: options.text('dedup-key'),
    idempotencyKey: options.text('idempotency-key'),
    worker: options.text('worker'),
    attempts: toAttempts(options.text('attempts')),
    payload: toPayload(options.text('payload')),
  })
}

function toAttempts(text: string | undefined): JobConditions['attempts'] {
  if (text === undefined) return undefined
  const [, min, dots, max] = /^(\d{0,15})(?:(\.\.)(\d{0,15}))?$/.exec(text) ?? []
  if (dots === undefined && min) return Number(min)
  if (dots !== undefined && (min || max)) return { ...(min && { min: Number(min) }), ...(max && { max: Number(max) }) }
  throw new UsageError(`--attempts must be a number such as 3, or a range such as 3.., ..3 or 2..4; got "${text}".`)
}

function toLabels(texts: readonly string[]): JobConditions['labels'] {
  if (texts.length === 0) return undefined
  const pairs = texts.map((text) => pairOf('label', text))
  const twice = pairs.find(([name], i) => pairs.findIndex(([other]) => other === name) < i)
  if (twice === undefined) return Object.fromEntries(pairs)
  throw new UsageError(`--label ${twice[0]} is given twice, and a job has one value of a label: no job could match.`)
}

/** A value that is JSON is taken as such; any other value is text. */
function toPayload(text: string | undefined): JobConditions['payload'] {
  if (text === undefined) return undefined
  const at = text.indexOf('=')
  if (at < 1) throw new UsageError(`--payload must be path=value, such as customer.id=c1; got "${text}".`)
  return { path: text.slice(0, at), equals: toValue(text.slice(at + 1)) }
}

function toValue(text: string): string | number | boolean | null {
  try {
    const value = parseJson(text)
    if (value === null || ['string', 'number', 'boolean'].includes(typeof value)) return value as string
  } catch {} // no JSON: text
  return text
}
