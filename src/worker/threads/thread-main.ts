// The program of a handler thread. It loads the module at once and reports whether that worked. Then it runs the module's handler
// for each job that is sent, and sends back what the handler returned or threw. A job that is sent to a thread whose module does
// not load never begins. Effects are prepared here, because the schemas of their queues are functions and cannot be sent.
//
// LEFTOVERS. Jobs of one thread share its event loop, so timers and promises of a job go on while the next one runs. Each handler
// is called in an async context of its own. Timers, callbacks and promises inherit the context, and an error that no code
// catches is reported in it. So it is known which job an error or a `process.exit` came from:
//
//   from the current job   the thread ends, and the job has failed (`crashed`)
//   from an earlier job    the current job goes on; the thread is ended after it
//   from no job            the same: it may be the module's own, or the context was lost
//
// If a module has its own listener for `uncaughtException`, this file does nothing about such errors.

import { AsyncLocalStorage } from 'node:async_hooks'
import { workerData } from 'node:worker_threads'
import { HoldfastError } from '../../errors.ts'
import { jobError } from '../../job/error.ts'
import { isPermanent } from '../../lease/permanent.ts'
import { delayAskedBy } from '../../lease/retry-later.ts'
import { anyStore, prepareEffects } from '../../queue/effects.ts'
import { show } from '../../runtime/duration.ts'
import { isFate } from '../fate.ts'
import { Job } from '../job.ts'
import { effectsOf } from '../staged-effects.ts'
import {
  type FromThread,
  isFateShape,
  type Leftover,
  type PreparedInThread,
  type Returned,
  readToThread,
  type SentError,
  type Start,
  type ThreadData,
  type Threw,
} from './messages.ts'
import { ThreadJob } from './thread-job.ts'

const { module, port, permit } = takeThreadData()
const send: (message: FromThread) => void = port.postMessage.bind(port)

const context = new AsyncLocalStorage<ThreadJob>()
let current: ThreadJob | null = null
let hasSentError = false

port.on('message', (received: unknown) => {
  const message = readToThread(received)
  if (message?.type === 'start') run(message)
  else if (!message || message.job !== current?.no) return
  else if (message.type === 'abort')
    context.run(current, () => current?.abort(message.error)) // listeners of the signal run in the context of their job
  else current.answered(message.call, message.error)
})

process.on('uncaughtException', (error) => {
  if (process.listenerCount('uncaughtException') > 1) return
  const from = context.getStore()
  if (from && from === current) {
    send({ type: 'crashed', job: from.no, error: described(error) })
    process.exit(1)
  }
  if (hasSentError) return // the thread is not used again, and the first error is enough to say why
  hasSentError = true
  sendLeftover('uncaught', from, described(error))
})

// Runs in the context of the call of `process.exit`.
process.on('exit', (code) => {
  const from = context.getStore()
  if (from && from !== current)
    sendLeftover('exit', from, { name: 'Error', message: `process.exit was called with code ${code}.` })
})

const loading = importHandler() // outside of the context of any job: timers of the module belong to no job
loading.then(
  () => send({ type: 'loaded' }),
  (error) => send({ type: 'unloadable', error: described(error) }),
)

async function run(start: Start): Promise<void> {
  const job = new ThreadJob(start, send)
  current = job
  const end = await ended(job, start.payload)
  job.end()
  if (current === job) current = null
  if (end) sendEnd(end)
}

/** Null: the worker has withdrawn the start, or knows that the module does not load. It does not wait for an end. */
async function ended(job: ThreadJob, payload: unknown): Promise<Returned | Threw | null> {
  const handler = await loading.catch(() => null)
  if (!handler) return null
  if (Atomics.compareExchange(permit, 0, job.no, -job.no) !== job.no) return null
  send({ type: 'began', job: job.no })
  return context.run(job, () => call(handler, job, new Job(job, payload)))
}

async function call(handler: (job: Job) => unknown, threadJob: ThreadJob, job: Job): Promise<Returned | Threw> {
  const { no } = threadJob
  try {
    const returned = await handler(job)
    threadJob.handlerEnded()
    const isOurs = isFate(returned)
    if (isOurs && !isFateShape(returned)) throw changedFate(returned)
    const staged = Job.stagedIn(job)
    const effects = await prepareEffects(staged ? effectsOf.all(staged) : undefined, anyStore)
    const ifDead = await ifDeadOf(job)
    return { type: 'returned', job: no, returned, isFate: isOurs, effects, ifDead, costs: Job.costsIn(job) }
  } catch (error) {
    // If the effects of a `Permanent` cannot be prepared, that error is sent instead.
    const sent = await toSent(error).catch(described)
    return { type: 'threw', job: no, error: sent, ifDead: await ifDeadOf(job), costs: Job.costsIn(job) }
  }
}

/** Only the worker knows whether the job dies, so they are sent with every end. */
async function ifDeadOf(job: Job): Promise<PreparedInThread> {
  const staged = Job.stagedIfDeadIn(job)
  if (!staged) return null
  try {
    const effects = await prepareEffects(effectsOf.all(staged), anyStore)
    return effects && { effects: structuredClone(effects) } // an end that cannot be sent would lose them
  } catch (error) {
    return { error: described(error) }
  }
}

function sendEnd(end: Returned | Threw): void {
  try {
    send(end)
  } catch (error) {
    const message = `A handler in a thread returns plain data: ${(error as Error).message}`
    const threw = described(new HoldfastError('INVALID_PAYLOAD', message))
    send({ type: 'threw', job: end.job, error: threw, ifDead: end.ifDead, costs: end.costs })
  }
}

async function importHandler(): Promise<(job: Job) => unknown> {
  const { default: exported } = await import(module)
  const handler = ofCommonJs(exported)
  if (typeof handler === 'function') return handler as (job: Job) => unknown
  const message = `The module ${module} must export its handler by default: export default async (job) => { … }; got ${show(handler)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'handler' })
}

/** A module that was compiled to CommonJS is `exports` to an import, and its default export is a property of that. */
function ofCommonJs(exported: unknown): unknown {
  const isCompiled = typeof exported === 'object' && exported !== null && '__esModule' in exported
  return isCompiled && 'default' in exported ? exported.default : exported
}

function sendLeftover(kind: Leftover['kind'], from: ThreadJob | undefined, error: SentError): void {
  const of = from ? { id: from.claimed.id, attempt: from.claimed.attempt } : null
  send({ type: 'leftover', job: current?.no ?? 0, kind, of, error })
}

/** Removes the port and the permit from `workerData`, which every module can read. */
function takeThreadData(): ThreadData {
  const shared = workerData as Partial<Record<keyof ThreadData, unknown>>
  const data = { ...shared } as unknown as ThreadData
  delete shared.port
  delete shared.permit
  return data
}

/** Anything that was thrown, as plain data. */
async function toSent(thrown: unknown): Promise<SentError> {
  const delayMs = delayAskedBy(thrown)
  const sent = { ...described(thrown), ...reasonOf(thrown), ...(isDelay(delayMs) && { delayMs }) }
  if (!isPermanent(thrown)) return sent
  return { ...sent, isPermanent: true, effects: await prepareEffects(thrown.effects, anyStore) }
}

function described(thrown: unknown): SentError {
  return { name: 'Error', ...jobError(thrown) }
}

function isDelay(delayMs: unknown): delayMs is number {
  return Number.isFinite(delayMs) && (delayMs as number) >= 0
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

function changedFate(returned: unknown): HoldfastError {
  const message = `A handler must return what job.snooze, release, outcome, offer or closeGate returned, unchanged; got ${show(returned)}.`
  return new HoldfastError('INVALID_OPTION', message)
}
