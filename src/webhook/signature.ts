// How a receiver verifies that a call is genuine and recent. Each secret signs `${timestamp}.${id}.${body}` with HMAC-SHA256. All
// signatures are sent. So during a change of secrets, a receiver that knows any one of them can verify the call.
//
//   holdfast-id: the id of the job, the same however often it is delivered; a UUID in lower case
//   holdfast-timestamp: when this delivery was made, in seconds since 1970; digits
//   holdfast-signature: v1=<hex>,v1=<hex>
//
// Neither digits nor a UUID contain a dot, so the signed text can be split in one way only. An id with a dot could include a part
// of the body: another id with a shorter body would have the same signature. So sender and receiver refuse any other form of id
// and of timestamp.

import { createHmac, timingSafeEqual } from 'node:crypto'
import { HoldfastError } from '../errors.ts'
import { checkNumber, checkOptions, isJobId } from '../job/names.ts'
import { show } from '../runtime/duration.ts'

export type Secrets = string | readonly string[]

export interface VerifyOptions {
  /** The secret, or several during a change of secrets. */
  readonly secret: Secrets
  /** The headers of the request, of Node or of fetch. */
  readonly headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>
  /** The body exactly as it was received, before any parsing. */
  readonly body: string | Uint8Array
  /** How far the time of a call may be in the past or the future; 300,000 unless given. */
  readonly toleranceMs?: number
}

export interface VerifiedWebhook {
  /** The same in every delivery of the call: store it, to do the work only once. */
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

/** Null: not signed with any of the secrets, an invalid id or timestamp, changed in transit, or too old. */
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
  // All pairs are compared, also after a match, so that the duration reveals nothing.
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
