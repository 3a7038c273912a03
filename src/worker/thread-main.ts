// The thread's side: imports the module, runs its handler for each job that is sent, and sends back what it says. Effects are
// prepared here, because the schemas of the queues they name are functions and cannot travel.

import { parentPort, workerData } from 'node:worker_threads'
import { type Duration, show } from '../duration.ts'
import { prepareEffects } from '../effects.ts'
import { HoldfastError } from '../errors.ts'
import type { DeliveryFacts } from '../events.ts'
import { jobError } from '../job/error.ts'
import { isPermanent } from '../permanent.ts'
import { delayAskedBy } from '../retry-later.ts'
import type { ClaimedJob } from '../store/store.ts'
import { isFate } from './fate.ts'
import { Job, type JobDesk } from './job.ts'
import type { FromHandler, SentError, Start, ThreadData, ToHandler } from './thread-wire.ts'

const { module } = workerData as ThreadData
const port = parentPort as NonNullable<typeof parentPort>
/** The worker checks again by what its store can do. */
const anyStore = { manyWriters: true, callerTransaction: true, sqlEffects: true, survivesPowerLoss: true }

let current: ThreadDesk | null = null

port.on('message', (message: ToHandler) => {
  if ('start' in message) run(message.start)
  else if ('abort' in message) current?.abort(message.abort)
  else current?.extended(message.extended, message.error)
})

async function run(start: Start): Promise<void> {
  const desk = new ThreadDesk(start)
  current = desk
  const end = await ended(desk, start.payload)
  current = null
  try {
    port.postMessage(end)
  } catch (error) {
    const message = `A handler in a thread returns plain data: ${(error as Error).message}`
    port.postMessage({ threw: await toSent(new HoldfastError('INVALID_PAYLOAD', message)) } satisfies FromHandler)
  }
}

async function ended(desk: ThreadDesk, payload: unknown): Promise<FromHandler> {
  try {
    const handler = await importHandler()
    const job = new Job(desk, payload)
    const returned = await handler(job)
    const staged = Job.stagedIn(job)
    return { returned, isFate: isFate(returned), effects: staged && (await prepareEffects(staged.all(), anyStore)) }
  } catch (error) {
    return { threw: await toSent(error).catch(toSent) } // where the effects of a death cannot be prepared, that is the error
  }
}

async function importHandler(): Promise<(job: Job) => unknown> {
  const { default: handler } = await import(module)
  if (typeof handler === 'function') return handler
  const message = `The module ${module} must export its handler by default: export default async (job) => { … }; got ${show(handler)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'handler' })
}

class ThreadDesk implements JobDesk {
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  readonly #controller = new AbortController()
  readonly #extensions = new Map<number, PromiseWithResolvers<void>>()
  #lastNo = 0

  constructor({ claimed, timeoutMs }: Start) {
    this.claimed = claimed
    this.timeoutMs = timeoutMs
  }

  signal(): AbortSignal {
    return this.#controller.signal
  }

  progress(progress: number, message: string | null): void {
    send({ progress, message })
  }

  log(message: string, facts: Readonly<Record<string, unknown>>): void {
    send({ log: message, facts })
  }

  delivered(delivered: DeliveryFacts): void {
    send({ delivered })
  }

  extend(duration: Duration): Promise<void> {
    this.#lastNo += 1
    const extension = Promise.withResolvers<void>()
    this.#extensions.set(this.#lastNo, extension)
    send({ extend: duration, no: this.#lastNo })
    return extension.promise
  }

  extended(no: number, error: SentError | null): void {
    const extension = this.#extensions.get(no)
    this.#extensions.delete(no)
    if (error) extension?.reject(toError(error))
    else extension?.resolve()
  }

  abort(error: SentError): void {
    this.#controller.abort(toError(error))
  }
}

function send(message: FromHandler): void {
  port.postMessage(message)
}

function toError({ name, message, code }: SentError): Error {
  const error = name === 'HoldfastError' ? new HoldfastError(code as never, message) : new Error(message)
  return Object.assign(error, { name })
}

/** Whatever was thrown, as data. */
async function toSent(thrown: unknown): Promise<SentError> {
  const delayMs = delayAskedBy(thrown)
  const sent = { name: 'Error', ...jobError(thrown), ...reasonOf(thrown), ...(delayMs !== null && { delayMs }) }
  if (!isPermanent(thrown)) return sent
  return { ...sent, isPermanent: true, effects: await prepareEffects(thrown.effects, anyStore) }
}

/** Of a `GateClosed`. */
function reasonOf(thrown: unknown): { readonly reason?: string } {
  try {
    const { reason } = thrown as { readonly reason?: unknown }
    return typeof reason === 'string' ? { reason } : {}
  } catch {
    return {}
  }
}
