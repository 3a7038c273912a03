// One delivery: a POST, and the redirects it is sent on by. Only 307 and 308 ask for the same call elsewhere; they are followed
// a few times, never to another scheme, each behind the same door as the first. What the caller added to the headers stays with
// the host it was meant for.

import type { IncomingMessage } from 'node:http'
import { Permanent } from '../lease/permanent.ts'
import type { SafeConnect } from './door.ts'

export interface Outgoing {
  readonly url: URL
  readonly body: string
  /** For whoever is called. */
  readonly headers: Readonly<Record<string, string>>
  /** For the host of the URL alone. */
  readonly ownHeaders: Readonly<Record<string, string>>
  readonly signal: AbortSignal
}

export interface Answered {
  readonly url: URL
  readonly status: number
  readonly retryAfter: string | undefined
  /** How the answer began. */
  readonly body: string
}

const redirectsMax = 3
/** How much of an answer is kept; what comes behind is not waited for. */
const keptBytes = 1_024

export async function deliver(outgoing: Outgoing, door: SafeConnect): Promise<Answered> {
  let url = outgoing.url
  for (let redirects = 0; ; redirects++) {
    door.check(url)
    const answer = await post(url, outgoing, door)
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
  door: SafeConnect,
): Promise<IncomingMessage> {
  // Loaded by the first delivery: both take 50 ms, and most programs deliver nothing.
  const { request: send } = await (url.protocol === 'https:' ? import('node:https') : import('node:http'))
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  const isAtHome = url.origin === first.url.origin
  const request = send(url, {
    method: 'POST',
    headers: { ...(isAtHome && ownHeaders), ...headers, 'content-length': Buffer.byteLength(body) },
    lookup: door.lookup,
    agent: false, // a connection that is kept may have been made by others, through no door
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
    // The status says it all; a body that breaks off changes nothing.
  }
  answer.destroy()
  return Buffer.concat(chunks).subarray(0, keptBytes).toString().replaceAll('\0', ' ')
}

function targetOf(from: URL, status: number, location: string | undefined): URL {
  if (status !== 307 && status !== 308)
    throw new Permanent(`${from.host} answered ${status}; only 307 and 308 are followed.`)
  const target = location === undefined ? null : URL.parse(location, from.href)
  if (!target) throw new Permanent(`${from.host} answered ${status} without saying where to.`)
  if (target.protocol !== from.protocol || target.username !== '') {
    throw new Permanent(`${from.host} redirects to ${target.protocol}//${target.host}; another scheme is not followed.`)
  }
  return target
}
