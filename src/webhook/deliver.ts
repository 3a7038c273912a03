// One delivery: a POST, and its redirects. Only 307 and 308 ask for the same call at another URL, so only these are followed: at
// most 3 times, never to another scheme, and with the same address checks as the first call. Headers that the application added
// are sent only to the origin of the original URL.

import type { IncomingMessage } from 'node:http'
import { Permanent } from '../lease/permanent.ts'
import type { SafeConnect } from './safe-connect.ts'

export interface Outgoing {
  readonly url: URL
  readonly body: string
  /** Sent to every host, also after a redirect. */
  readonly headers: Readonly<Record<string, string>>
  /** Sent only to the origin of the URL. */
  readonly ownHeaders: Readonly<Record<string, string>>
  readonly signal: AbortSignal
}

export interface Answered {
  readonly url: URL
  readonly status: number
  readonly retryAfter: string | undefined
  /** The beginning of the answer. */
  readonly body: string
}

const redirectsMax = 3
/** How much of an answer is kept; the rest is not read. */
const keptBytes = 1_024

export async function deliver(outgoing: Outgoing, safeConnect: SafeConnect): Promise<Answered> {
  let url = outgoing.url
  for (let redirects = 0; ; redirects++) {
    safeConnect.check(url)
    const answer = await post(url, outgoing, safeConnect)
    const { statusCode: status = 0, headers } = answer
    const body = await beginningOf(answer)
    if (status < 300 || status > 399) return { url, status, retryAfter: headers['retry-after'], body }
    if (redirects === redirectsMax)
      throw new Permanent(`${outgoing.url.host} redirects more than ${redirectsMax} times.`)
    url = targetOf(url, status, headers.location)
  }
}

async function post(
  url: URL,
  { body, headers, ownHeaders, signal, ...first }: Outgoing,
  safeConnect: SafeConnect,
): Promise<IncomingMessage> {
  // Loaded by the first delivery, because both take 50 ms to load and most programs deliver no webhooks.
  const { request: send } = await (url.protocol === 'https:' ? import('node:https') : import('node:http'))
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  const isAtHome = url.origin === first.url.origin
  const request = send(url, {
    method: 'POST',
    headers: { ...(isAtHome && ownHeaders), ...headers, 'content-length': Buffer.byteLength(body) },
    lookup: safeConnect.lookup,
    agent: false, // a kept-alive connection may have been opened by other code, without the address checks
    signal,
  })
  request.on('response', resolve)
  request.on('error', reject)
  request.end(body)
  return promise
}

async function beginningOf(answer: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = []
  let size = 0
  try {
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      chunks.push(chunk)
      size += chunk.length
      if (size >= keptBytes) break
    }
  } catch {
    // The status decides the outcome; an incomplete body does not matter.
  }
  answer.destroy()
  return Buffer.concat(chunks).subarray(0, keptBytes).toString().replaceAll('\0', ' ')
}

function targetOf(from: URL, status: number, location: string | undefined): URL {
  if (status !== 307 && status !== 308)
    throw new Permanent(`${from.host} answered ${status}; only 307 and 308 are followed.`)
  const target = location === undefined ? null : URL.parse(location, from.href)
  if (!target) throw new Permanent(`${from.host} answered ${status} without a valid location.`)
  if (target.protocol !== from.protocol || target.username !== '') {
    throw new Permanent(`${from.host} redirects to ${target.protocol}//${target.host}; another scheme is not followed.`)
  }
  return target
}
