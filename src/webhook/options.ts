// What webhooks are made with, and what a call may be: checked when it is enqueued, and again when it is delivered, because
// anybody may have written to the queue.

import { HoldfastError } from '../errors.ts'
import { byteLength, encodeJson, isPlainObject, payloadRule } from '../job/codec.ts'
import { checkBoolean, checkInteger, checkOptions } from '../job/names.ts'
import type { BehaviourOptions } from '../queue/definition.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { AllowList } from './addresses.ts'
import type { DoorRules } from './door.ts'
import { checkSecrets, type Secrets } from './signature.ts'

/** What is stored of a call. */
export interface WebhookCall {
  readonly url: string
  /** The very text that is sent and signed. */
  readonly body: string
  readonly contentType: string
  readonly headers: Readonly<Record<string, string>>
}

export interface CallOptions {
  /** `application/json` unless given, or `text/plain` where the body is a text. */
  readonly contentType?: string
  /** Headers of your own; they lie in the store as they are. */
  readonly headers?: Readonly<Record<string, string>>
}

export type SecretFor = (call: WebhookCall) => Secrets | Promise<Secrets>

export interface WebhooksOptions extends Pick<BehaviourOptions, 'attempts' | 'backoff' | 'retain' | 'onDead'> {
  /** Signs every call; several while they are being changed, or a function that knows the secret of each receiver. */
  readonly secret: Secrets | SecretFor
  /** `holdfast.webhooks` unless given. */
  readonly queue?: string
  /** How long one delivery may take, redirects included; 10 s unless given. */
  readonly timeout?: Duration
  /** The most that `Retry-After` may ask for; an hour unless given. */
  readonly retryAfterMax?: Duration
  /** The most calls to one host at a time, in each worker's process; 5 unless given. */
  readonly perHost?: number
  /** Also to addresses that are not public. For tests, and where every URL is your own. */
  readonly allowPrivate?: boolean
  /** Host names, addresses and networks that may be called although they are not public. */
  readonly allow?: readonly string[]
}

export interface WebhookPlan {
  readonly queue: string
  readonly behaviour: BehaviourOptions
  readonly timeoutMs: number
  readonly retryAfterMaxMs: number
  readonly perHost: number
  readonly rules: DoorRules
  secretsFor(call: WebhookCall): Promise<readonly string[]>
}

const bodyBytes = 256 * 1024
const urlLength = 2_048
const behaviourNames = ['attempts', 'backoff', 'retain', 'onDead'] as const
const optionNames = [
  'secret',
  'queue',
  'timeout',
  'retryAfterMax',
  'perHost',
  'allowPrivate',
  'allow',
  ...behaviourNames,
]
/** Ours, or such as would change what is sent. */
const takenHeaders =
  /^(host|connection|content-length|content-type|transfer-encoding|expect|upgrade|te|trailer|holdfast-.*)$/i

export function toWebhookPlan(options: WebhooksOptions): WebhookPlan {
  checkOptions(options, 'webhook options', optionNames)
  const { secret, queue = 'holdfast.webhooks', timeout = '10s', retryAfterMax = '1h', perHost = 5 } = options
  const { allowPrivate = false, allow = [], ...rest } = options
  const given = behaviourNames.flatMap((name) => (rest[name] === undefined ? [] : [[name, rest[name]]]))
  if (typeof secret !== 'function') checkSecrets(secret)
  if (!Array.isArray(allow)) throw invalid('allow', allow, 'allow is an array')
  return {
    queue,
    behaviour: { attempts: 10, backoff: { base: '10s', factor: 3, max: '1h' }, ...Object.fromEntries(given) },
    timeoutMs: toMs(timeout, 'timeout', { min: 1, max: 600_000 }),
    retryAfterMaxMs: toMs(retryAfterMax, 'retryAfterMax'),
    perHost: checkInteger(perHost, 'perHost', 1, 10_000),
    rules: { allowPrivate: checkBoolean(allowPrivate, 'allowPrivate'), allow: new AllowList(allow) },
    secretsFor: async (call) => checkSecrets(typeof secret === 'function' ? await secret(call) : secret),
  }
}

export function toCall(url: string | URL, body: unknown, options: CallOptions = {}): WebhookCall {
  checkOptions(options, 'call options', ['contentType', 'headers'])
  const isText = typeof body === 'string'
  const { contentType = isText ? 'text/plain; charset=utf-8' : 'application/json', headers = {} } = options
  return checkCall({ url: String(url), body: isText ? body : encodeJson(body, payloadRule), contentType, headers })
}

/** Throws INVALID_OPTION. */
export function checkCall(call: WebhookCall): WebhookCall {
  checkOptions(call, 'the call', ['url', 'body', 'contentType', 'headers'])
  const { url, body, contentType, headers } = call
  const target = typeof url === 'string' && url.length <= urlLength ? URL.parse(url) : null
  if (!target || !/^https?:$/.test(target.protocol)) throw invalid('url', url, 'url is an http or https URL')
  if (target.username !== '' || target.password !== '') {
    throw new HoldfastError('INVALID_OPTION', 'url must not hold a password; use headers.', { option: 'url' })
  }
  if (typeof body !== 'string' || byteLength(body) > bodyBytes) {
    throw new HoldfastError('PAYLOAD_TOO_LARGE', `The body of a webhook has at most ${bodyBytes} bytes.`, {
      maxBytes: bodyBytes,
    })
  }
  if (!isHeaderValue(contentType)) throw invalid('contentType', contentType, 'contentType is a text')
  const entries = isPlainObject(headers) ? Object.entries(headers) : [['', '']]
  for (const [name = '', value] of entries) {
    const isFit = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name) && isHeaderValue(value) && !takenHeaders.test(name)
    if (!isFit) throw invalid('headers', name, 'headers is an object of texts, without those that Holdfast sets')
  }
  return { url, body, contentType, headers }
}

function isHeaderValue(value: unknown): boolean {
  return typeof value === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)
}

function invalid(option: string, value: unknown, wanted: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${wanted}; got ${show(value)}.`, { option })
}
