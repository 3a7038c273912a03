// Holdfast over HTTP: a fetch-style handler, `(Request) => Promise<Response>`, to mount in any framework. It only reads. It does
// no authentication: the application that mounts it controls access.

import type { JobsFilter } from '../client/filter.ts'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { parseJson } from '../job/json.ts'
import { checkOptions } from '../job/names.ts'
import { Health, type HealthParts, storeHealth } from '../observe/health.ts'
import { show } from '../runtime/duration.ts'
import { parseTime } from '../runtime/time-text.ts'

export interface HandlerOptions {
  /** Where the handler is mounted, such as `/holdfast`; the root unless given. */
  readonly basePath?: string
  /** More parts to check, such as your workers. The store is always checked. */
  readonly health?: HealthParts
}

export type Handler = (request: Request) => Promise<Response>

export function createHandler(holdfast: Holdfast, options: HandlerOptions = {}): Handler {
  checkOptions(options, 'handler options', ['basePath', 'health'])
  checkOptions(options.health ?? {}, 'health', ['live', 'ready'])
  const base = (options.basePath ?? '').replace(/\/+$/, '')
  const { live = {}, ready = {} } = options.health ?? {}
  const health = new Health({ live, ready: { store: storeHealth(holdfast), ...ready } })
  return async (request) => {
    if (request.method !== 'GET' && request.method !== 'HEAD') return answer(405, failure('Only GET is answered here.'))
    const { pathname, searchParams } = new URL(request.url)
    if (!pathname.startsWith(`${base}/`)) return answer(404, failure(`There is nothing at ${pathname}.`))
    try {
      return await route({ holdfast, health }, pathname.slice(base.length), searchParams)
    } catch (error) {
      if (isHoldfastError(error)) return answer(statusOf(error), failure(error.message, error.code))
      throw error
    }
  }
}

interface Served {
  readonly holdfast: Holdfast
  readonly health: Health
}

async function route({ holdfast, health }: Served, path: string, query: URLSearchParams): Promise<Response> {
  const [, area, name, id, ...rest] = path.split('/')
  if (rest.length > 0) return answer(404, failure(`There is nothing at ${path}.`))
  if (area === 'health' && id === undefined) {
    if (name === 'live' || name === 'ready') return health.answer(name)
    return answer(404, failure('Use /health/live or /health/ready.'))
  }
  if (area === 'api' && name === 'queues' && id === undefined) return answer(200, await holdfast.queues())
  if (area === 'api' && name === 'jobs' && id === undefined) return answer(200, await holdfast.jobs(toFilter(query)))
  if (area === 'api' && name === 'jobs' && id !== undefined) {
    const job = await holdfast.job(decoded(id))
    return job ? answer(200, job) : answer(404, failure(`There is no job ${id}.`, 'JOB_NOT_FOUND'))
  }
  return answer(404, failure(`There is nothing at ${path}.`))
}

/** Unchanged if it cannot be decoded, because then it is not an id either. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

const lists = { queue: 'queue', state: 'state', id: 'ids', include: 'include' } as const
const texts = ['error', 'errorGroup', 'batch', 'limitKey', 'dedupKey', 'idempotencyKey', 'worker', 'after'] as const
const ranges = ['enqueued', 'started', 'ended'] as const
const known = [
  ...Object.keys(lists),
  ...texts,
  ...ranges.flatMap((name) => [`${name}Since`, `${name}Before`]),
  ...['attemptsMin', 'attemptsMax', 'payloadPath', 'payloadEquals', 'label', 'limit'],
]

/** Times are ISO 8601 or milliseconds; the value of a payload is JSON. What a parameter may be is checked by the client. */
function toFilter(query: URLSearchParams): JobsFilter {
  for (const name of query.keys()) {
    if (known.includes(name)) continue
    throw new HoldfastError('INVALID_OPTION', `There is no filter "${name}"; there are ${known.join(', ')}.`, {
      option: name,
    })
  }
  for (const name of new Set(query.keys()))
    if (name !== 'label' && !(name in lists) && query.getAll(name).length > 1) throw givenTwice(name)
  const entries: [string, unknown][] = []
  for (const [name, option] of Object.entries(lists)) if (query.has(name)) entries.push([option, query.getAll(name)])
  for (const name of texts) if (query.has(name)) entries.push([name, query.get(name)])
  for (const name of ranges) {
    const range = { ...timeOf(query, name, 'since'), ...timeOf(query, name, 'before') }
    if (Object.keys(range).length > 0) entries.push([name, range])
  }
  const attempts = { ...numberOf(query, 'attemptsMin', 'min'), ...numberOf(query, 'attemptsMax', 'max') }
  if (Object.keys(attempts).length > 0) entries.push(['attempts', attempts])
  if (query.has('label')) entries.push(['labels', labelsOf(query.getAll('label'))])
  if (query.has('payloadPath') || query.has('payloadEquals'))
    entries.push(['payload', { path: query.get('payloadPath'), equals: jsonOf(query.get('payloadEquals')) }])
  return { ...Object.fromEntries(entries), ...numberOf(query, 'limit', 'limit') }
}

function labelsOf(texts: readonly string[]): Readonly<Record<string, string>> {
  const labels = texts.map(toLabel)
  const names = labels.map(([name]) => name)
  const twice = names.find((name, i) => names.indexOf(name) < i)
  if (twice !== undefined) throw givenTwice(`label=${twice}`)
  return Object.fromEntries(labels)
}

/** All conditions must hold, and one that is given twice would be dropped. */
function givenTwice(name: string): HoldfastError {
  const repeatable = [...Object.keys(lists), 'labels of different names'].join(', ')
  const sentence = `${name} is given twice. A condition is given once; only ${repeatable} may be repeated.`
  return new HoldfastError('INVALID_OPTION', sentence, { option: name })
}

/** name=value; without the sign the value is empty, which no label is. */
function toLabel(text: string): [name: string, value: string] {
  const at = text.indexOf('=')
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)]
}

function timeOf(query: URLSearchParams, name: string, end: 'since' | 'before') {
  const option = `${name}${end === 'since' ? 'Since' : 'Before'}`
  const text = query.get(option)
  if (text === null) return {}
  const time = /^\d{1,16}$/.test(text) ? Number(text) : parseTime(text)
  if (time !== undefined) return { [end]: time }
  const accepts = 'a time such as 2030-01-31T09:00:00Z (UTC, unless a zone is given), a date such as 2030-01-31'
  throw new HoldfastError(
    'INVALID_OPTION',
    `${option} must be ${accepts}, or whole milliseconds since 1970; got ${show(text)}. A + in a URL is written %2B.`,
    { option, value: text },
  )
}

function numberOf(query: URLSearchParams, name: string, option: string) {
  const text = query.get(name)
  return text === null ? {} : { [option]: text.trim() === '' ? Number.NaN : Number(text) }
}

/** Text that is no JSON is undefined, which no filter takes. */
function jsonOf(text: string | null): unknown {
  try {
    return text === null ? undefined : parseJson(text)
  } catch {
    return undefined
  }
}

function statusOf({ code }: HoldfastError): number {
  if (code === 'JOB_NOT_FOUND') return 404
  return code === 'STORE_UNAVAILABLE' || code === 'CLOSED' ? 503 : 400
}

function failure(message: string, code?: string) {
  return { error: { message, ...(code !== undefined && { code }) } }
}

function answer(status: number, body: unknown): Response {
  return Response.json(body, { status, headers: { 'cache-control': 'no-store' } })
}
