// How a receiver knows that a call is ours, and new. Each secret signs `${timestamp}.${id}.${body}` with HMAC-SHA256; all
// signatures go along, so that a receiver that knows any one of the secrets is content while they are being changed.
//
//   holdfast-id: the id of the job, the same however often it is delivered; a UUID in lower case
//   holdfast-timestamp: when this delivery was made, in seconds since 1970; digits
//   holdfast-signature: v1=<hex>,v1=<hex>
//
// Neither digits nor a UUID hold a dot, so the signed text can be split in one way only. An id that holds one would take a
// part of the body along: another id and a shorter body would have the same signature. So any other id is refused, by the
// sender and by the receiver, and so is any other timestamp.

import { createHmac, timingSafeEqual } from 'node:crypto'
import { HoldfastError } from '../errors.ts'
import { checkNumber, checkOptions, isJobId } from '../job/names.ts'
import { show } from '../runtime/duration.ts'

export type Secrets = string | readonly string[]

export interface VerifyOptions {
  /** The secret, or several while it is being changed. */
  readonly secret: Secrets
  /** Of the request, as Node's or as those of fetch. */
  readonly headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>
  /** The very bytes that came, before anybody parsed them. */
  readonly body: string | Uint8Array
  /** How old or how far ahead a call may be; 300,000 unless given. */
  readonly toleranceMs?: number
}

export interface VerifiedWebhook {
  /** The same however often it is delivered: remember it to do its work once. */
  readonly id: string
  readonly sentAt: Date
}

const secretLength = 1_024
const secretsMax = 10
const defaultToleranceMs = 300_000

export function signatureHeaders(id: string, body: string, secrets: readonly string[], now: number) {
  if (!isJobId(id))
    throw new HoldfastError('INVALID_ID', `A webhook is signed with the id of its job; got ${show(id)}.`)
  const timestamp = String(Math.floor(now / 1_000))
  const signatures = secrets.map((secret) => `v1=${hmac(secret, timestamp, id, Buffer.from(body)).toString('hex')}`)
  return { 'holdfast-id': id, 'holdfast-timestamp': timestamp, 'holdfast-signature': signatures.join(',') }
}

/** Null: it was not signed with any of the secrets, its id or time is none of ours, it was changed on its way, or is too old. */
export function verifyWebhook(options: VerifyOptions): VerifiedWebhook | null {
  checkOptions(options, 'verify options', ['secret', 'headers', 'body', 'toleranceMs'])
  const secrets = checkSecrets(options.secret)
  const { headers, body, toleranceMs = defaultToleranceMs } = options
  checkNumber(toleranceMs, 'toleranceMs', 0, Number.POSITIVE_INFINITY)
  const id = headerOf(headers, 'holdfast-id')
  const timestamp = headerOf(headers, 'holdfast-timestamp')
  if (!isJobId(id) || !/^\d{1,12}$/.test(timestamp)) return null
  const sentAt = Number(timestamp) * 1_000
  if (!(Math.abs(Date.now() - sentAt) <= toleranceMs)) return null
  const bytes = typeof body === 'string' ? Buffer.from(body) : body
  const given = headerOf(headers, 'holdfast-signature')
    .split(',')
    .flatMap((part) => /^\s*v1=([0-9a-f]{64})\s*$/.exec(part)?.[1] ?? [])
    .slice(0, secretsMax)
    .map((hex) => Buffer.from(hex, 'hex'))
  const wanted = secrets.map((secret) => hmac(secret, timestamp, id, bytes))
  // All are compared, whichever fits: how long it takes tells nothing.
  const fits = wanted.flatMap((each) => given.map((signature) => timingSafeEqual(each, signature)))
  return fits.includes(true) ? { id, sentAt: new Date(sentAt) } : null
}

export function checkSecrets(secret: unknown): readonly string[] {
  const secrets = Array.isArray(secret) ? secret : [secret]
  const areFit = secrets.every((each) => typeof each === 'string' && each !== '' && each.length <= secretLength)
  if (areFit && secrets.length > 0 && secrets.length <= secretsMax) return secrets
  const got = typeof secret === 'string' ? 'a text of another length' : show(secret) // never the secret itself
  const wanted = `secret is 1 to ${secretsMax} texts of 1 to ${secretLength} characters; got ${got}.`
  throw new HoldfastError('INVALID_OPTION', wanted, { option: 'secret' })
}

function hmac(secret: string, timestamp: string, id: string, body: Uint8Array): Buffer {
  return createHmac('sha256', secret).update(`${timestamp}.${id}.`).update(body).digest()
}

function headerOf(headers: VerifyOptions['headers'], name: string): string {
  const value = headers instanceof Headers ? headers.get(name) : headers[name]
  return typeof value === 'string' ? value : ''
}
