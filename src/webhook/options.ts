// The options of webhooks, and the checks of a call. A call is checked when it is enqueued, and again when it is delivered,
// because any program may have written to the queue.

import { HoldfastError } from '../errors.ts'
import { byteLength, encodeJson, isPlainObject, payloadRule } from '../job/codec.ts'
import { checkBoolean, checkInteger, checkOptions } from '../job/names.ts'
import type { BehaviourOptions } from '../queue/definition.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { AllowList } from './addresses.ts'
import type { ConnectRules } from './safe-connect.ts'
import { checkSecrets, type Secrets } from './signature.ts'

/** A call as it is stored. */
export interface WebhookCall {
  readonly url: string
  /** The exact text that is sent and signed. */
  readonly body: string
  readonly contentType: string
  readonly headers: Readonly<Record<string, string>>
}

export interface CallOptions {
  /** `application/json` unless given, or `text/plain` if the body is a text. */
  readonly contentType?: string
  /** Your own headers. They are stored as plain text. */
  readonly headers?: Readonly<Record<string, string>>
}

export type SecretFor = (call: WebhookCall) => Secrets | Promise<Secrets>

export interface WebhooksOptions extends Pick<BehaviourOptions, 'attempts' | 'backoff' | 'retain' | 'onDead'> {
  /** Signs every call. Pass several during a change of secrets, or a function that returns the secret of each receiver. */
  readonly secret: Secrets | SecretFor
  /** `holdfast.webhooks` unless given. */
  readonly queue?: string
  /** How long one delivery may take, redirects included; 10 s unless given. */
  readonly timeout?: Duration
  /** The longest delay that `Retry-After` may request; an hour unless given. */
  readonly retryAfterMax?: Duration
  /** The most calls to one host at a time, in each worker's process; 5 unless given. */
  readonly perHost?: number
  /** Also deliver to addresses that are not public. For tests, and where every URL is your own. */
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
  readonly rules: ConnectRules
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
/** Headers that Holdfast sets, or that would change how the body is sent. */
const takenHeaders =
  /^(host|connection|content-length|content-type|transfer-encoding|expect|upgrade|te|trailer|holdfast-.*)$/i

export function toWebhookPlan(options: WebhooksOptions): WebhookPlan {
  checkOptions(options, 'webhook options', optionNames)
  const { secret, queue = 'holdfast.webhooks', timeout = '10s', retryAfterMax = '1h', perHost = 5 } = options
  const { allowPrivate = false, allow = [], ...rest } = options
  const given = behaviourNames.flatMap((name) => (rest[name] === undefined ? [] : [[name, rest[name]]]))
  if (typeof secret !== 'function') checkSecrets(secret)
  if (!Array.isArray(allow)) throw invalid('allow', allow, 'allow must be an array')
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
  if (!target || !/^https?:$/.test(target.protocol)) throw invalid('url', url, 'url must be an http or https URL')
  if (target.username !== '' || target.password !== '') {
    throw new HoldfastError('INVALID_OPTION', 'url must not contain a password; use headers.', { option: 'url' })
  }
  if (typeof body !== 'string' || byteLength(body) > bodyBytes) {
    throw new HoldfastError('PAYLOAD_TOO_LARGE', `The body of a webhook may have at most ${bodyBytes} bytes.`, {
      maxBytes: bodyBytes,
    })
  }
  if (!isHeaderValue(contentType)) throw invalid('contentType', contentType, 'contentType must be a text')
  const entries = isPlainObject(headers) ? Object.entries(headers) : [['', '']]
  for (const [name = '', value] of entries) {
    const isFit = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name) && isHeaderValue(value) && !takenHeaders.test(name)
    if (!isFit) throw invalid('headers', name, 'headers must be an object of texts, without those that Holdfast sets')
  }
  return { url, body, contentType, headers }
}

function isHeaderValue(value: unknown): boolean {
  return typeof value === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)
}

function invalid(option: string, value: unknown, wanted: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${wanted}; got ${show(value)}.`, { option })
}
