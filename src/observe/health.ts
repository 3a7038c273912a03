// Health checks for orchestrators:
//
// - `live`: the loops of the process run. A process that is not live should be restarted.
// - `ready`: the process can work now, which also needs a store that answers.
//
// The answer names each part, so it shows which one is down. It never hangs: a part that does not answer in time is down.

import { type HoldfastError, isHoldfastError } from '../errors.ts'
import { checkOptions } from '../job/names.ts'

export interface PartHealth {
  readonly ok: boolean
  /** What is wrong, in words. The answer of `worker.health()` can be used as it is. */
  readonly why?: string | null
}

export type PartCheck = () => PartHealth | Promise<PartHealth>

export interface HealthParts {
  /** Faults that only a restart repairs. Check nothing here that may be slow or unreachable, such as a database. */
  readonly live?: Readonly<Record<string, PartCheck>>
  /** What the process needs for its work. The checks of `live` are made as well. */
  readonly ready?: Readonly<Record<string, PartCheck>>
}

export interface HealthReport {
  readonly ok: boolean
  readonly parts: Readonly<Record<string, PartHealth>>
}

export type HealthQuestion = keyof HealthParts

const answerWithinMs = 2_000

/** Answers `/health/live` and `/health/ready`: 200 if every part is ok, otherwise 503 with the parts that are down. */
export function healthHandler(
  parts: HealthParts,
  options: { readonly basePath?: string } = {},
): (request: Request) => Promise<Response> {
  checkOptions(parts, 'health', ['live', 'ready'])
  checkOptions(options, 'health options', ['basePath'])
  const { basePath = '' } = options
  const health = new Health(parts)
  const base = `${basePath.replace(/\/+$/, '')}/health/`
  return async (request) => {
    const { pathname } = new URL(request.url)
    const question = pathname.startsWith(base) ? pathname.slice(base.length) : ''
    if (question === 'live' || question === 'ready') return health.answer(question)
    const message = `There is nothing at ${pathname}. Use ${base}live or ${base}ready.`
    return Response.json({ error: { message } }, { status: 404 })
  }
}

export class Health {
  readonly #parts: HealthParts
  readonly #asked = new Map<PartCheck, Promise<PartHealth>>()

  constructor(parts: HealthParts) {
    this.#parts = parts
  }

  async answer(question: HealthQuestion): Promise<Response> {
    const { ok, parts } = await this.report(question)
    const headers = { 'cache-control': 'no-store' }
    return Response.json({ [question]: ok, parts }, { status: ok ? 200 : 503, headers })
  }

  async report(question: HealthQuestion): Promise<HealthReport> {
    const { live = {}, ready = {} } = this.#parts
    const checks = Object.entries(question === 'live' ? live : { ...live, ...ready })
    const answers = await Promise.all(checks.map(async ([name, check]) => [name, await this.#ask(check)] as const))
    return { ok: answers.every(([, { ok }]) => ok), parts: Object.fromEntries(answers) }
  }

  /** A check that has not answered yet is not called again: probes come every few seconds, even if the last has not ended. */
  async #ask(check: PartCheck): Promise<PartHealth> {
    const asked = this.#asked.get(check) ?? answerOf(check).finally(() => this.#asked.delete(check))
    this.#asked.set(check, asked)
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<PartHealth>((resolve) => {
      timer = setTimeout(resolve, answerWithinMs, { ok: false, why: `No answer within ${answerWithinMs} ms.` })
    })
    const answer = await Promise.race([asked, late])
    clearTimeout(timer)
    return answer
  }
}

/** The store as a part of `ready`. */
export function storeHealth(holdfast: {
  queues(): Promise<unknown>
  readonly stalled?: HoldfastError | null
}): PartCheck {
  return async () => {
    if (holdfast.stalled) throw holdfast.stalled
    await holdfast.queues()
    return { ok: true }
  }
}

async function answerOf(check: PartCheck): Promise<PartHealth> {
  try {
    const { ok, why } = await check()
    return { ok, ...(why != null && { why }) }
  } catch (error) {
    const code = isHoldfastError(error) ? `${error.code}: ` : ''
    return { ok: false, why: code + (error instanceof Error ? error.message : String(error)) }
  }
}
