// Holdfast over HTTP: a fetch-style handler, `(Request) => Promise<Response>`, to mount in any framework. It only reads. It does
// no authentication: the application that mounts it controls access.

import type { JobsFilter } from '../client/requests.ts'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { checkOptions } from '../job/names.ts'
import { Health, type HealthParts, storeHealth } from '../observe/health.ts'

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

function toFilter(query: URLSearchParams): JobsFilter {
  const known = ['queue', 'state', 'limit', 'after']
  for (const name of query.keys()) {
    if (known.includes(name)) continue
    throw new HoldfastError('INVALID_OPTION', `There is no filter "${name}"; there are ${known.join(', ')}.`, {
      option: name,
    })
  }
  const limit = query.get('limit')
  const texts = ['queue', 'state', 'after'].flatMap((name) => (query.has(name) ? [[name, query.get(name)]] : []))
  return { ...Object.fromEntries(texts), ...(limit !== null && { limit: Number(limit) }) }
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
