// The options of `work`, and the plan that a worker is made from: every queue with its handler, every option checked.

import { availableParallelism, hostname } from 'node:os'
import { fileURLToPath } from 'node:url'
import { HoldfastError } from '../errors.ts'
import { type AnyFlow, isFlow } from '../flow/definition.ts'
import { handlerOf } from '../flow/handler.ts'
import { bounds, defaults } from '../job/bounds.ts'
import { checkBoolean, checkInteger, checkNumber, checkOptions, checkWorkerName } from '../job/names.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import { type OutOf, type QueueReference, type ResultOf, toDefinition } from '../queue/reference.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { type Host, host } from '../runtime/host.ts'
import { newId } from '../runtime/id.ts'
import type { OpenGate } from './claim-loop.ts'
import type { Fate } from './fate.ts'
import type { Job } from './job.ts'
import type { GatePass } from './run.ts'
import type { ThreadOptions } from './threads/thread-pool.ts'

export type Handler<Payload = unknown, Result = unknown> = (
  job: Job<Payload, Result>,
) => Returned<Result> | Promise<Returned<Result>>

/** A handler may return nothing only if its queue declares no result. */
// biome-ignore lint/suspicious/noConfusingVoidType: the handler returns nothing at all
type Returned<Result> = Result | Fate<Result> | (undefined extends Result ? void : never)

/** The handler of a queue: `HandlerOf<typeof mail>`. */
export type HandlerOf<Q> = Handler<OutOf<Q>, ResultOf<Q>>

/** A module whose default export is the handler; it runs in a pool of threads. */
export type HandlerModule = URL

/** Runs around every handler: it can read the job, call `next`, and read or replace what `next` returns. */
export type Middleware = (job: Job, next: () => Promise<unknown>) => Promise<unknown>

/** A gate that must be open before a worker claims; see `holdfast.gate(name)`. */
export interface WorkerGate extends OpenGate {
  passNow(): GatePass
  /** This worker does not use the gate any more. */
  stop(): void
}

export interface QueueWorkOptions {
  /** The share of this queue among the queues of this worker; 1 unless given. */
  readonly weight?: number
  /** The most jobs of this queue that the worker runs at a time; the worker's `concurrency` unless given. */
  readonly concurrency?: number
  /** For a handler in a module. */
  readonly threads?: ThreadsOption
}

/** How many threads, one for each core unless given; as an object also how much memory each may use. */
export type ThreadsOption = number | { readonly count?: number; readonly maxMemoryMb?: number }

export interface WorkOptions {
  /** The most jobs at a time; 10 unless given. */
  readonly concurrency?: number
  /** How long a lease lasts; it is renewed after a third of that. The shortest lease of the queues unless given. */
  readonly lease?: Duration
  readonly middleware?: readonly Middleware[]
  /** The name of the worker in the history; host, process id and a random part unless given. */
  readonly name?: string
  /** How long an aborted handler has to end before it is abandoned; 5 s unless given. */
  readonly unwind?: Duration
  readonly gate?: WorkerGate
  /** Whether this process also sweeps and fires schedules while it works; true unless given. */
  readonly sweep?: boolean
  /** For handlers in modules. */
  readonly threads?: ThreadsOption
}

/** A queue with its handler. */
export type Pair<Q = AnyDefinition> =
  | readonly [queue: Q, handler: HandlerOf<Q> | HandlerModule, options?: QueueWorkOptions]
  | FlowAlone<Q>

/** A flow brings its function along. */
export type FlowAlone<Q> = readonly [flow: Q & AnyFlow, options?: QueueWorkOptions]

export type Pairs<Queues> = { readonly [I in keyof Queues]: Pair<Queues[I]> }

/**
 * What `work` takes second. With a queue it is the handler, with pairs the options. In the latter case nothing can be inferred
 * for `Q`, which then is every `QueueReference`.
 */
export type HandlerOrOptions<Payload, Result, Q> = [QueueReference] extends [Q]
  ? Handler<Payload, Result> | HandlerModule | WorkOptions
  : Q extends '*'
    ? Handler<Payload, Result>
    : (Q extends string ? Handler<Payload, Result> : HandlerOf<Q>) | HandlerModule

export interface ServedQueue {
  readonly definition: AnyDefinition
  readonly handler: Handler | HandlerModule
  readonly weight: number
  readonly limit: number
  readonly threads: ThreadOptions
}

export interface Plan {
  readonly name: string
  readonly concurrency: number
  /** Null: the shortest of the queues. */
  readonly leaseMs: number | null
  readonly unwindMs: number
  readonly middleware: readonly Middleware[]
  readonly gate: WorkerGate | null
  readonly sweeps: boolean
  /** The handler for every queue of the store; null if queues are named. */
  readonly all: Handler | null
  readonly queues: ReadonlyMap<string, ServedQueue>
  /** Some of them are flows. */
  readonly hasFlows: boolean
}

const optionNames: readonly (keyof WorkOptions)[] = [
  ...(['concurrency', 'lease', 'middleware', 'name', 'unwind', 'gate', 'sweep', 'threads'] as const),
]

export function toPlan(pairs: readonly (readonly unknown[])[], options: WorkOptions = {}): Plan {
  checkOptions(options, 'work options', optionNames)
  const { concurrency = defaults.concurrency, unwind = defaults.unwindMs, middleware = [], sweep = true } = options
  const most = checkInteger(concurrency, 'concurrency', 1, bounds.concurrencyMax)
  const [first] = pairs
  const isAll = pairs.length === 1 && first?.[0] === '*'
  const served = isAll ? [] : pairs.map((pair) => toServed(pair, most, options.threads))
  const queues = new Map(served.map((queue) => [queue.definition.name, queue]))
  const twice = served.find((queue) => queues.get(queue.definition.name) !== queue)?.definition.name
  if (twice !== undefined)
    throw invalid('queues', `A worker has one handler for each queue; queue ${twice} is named twice.`)
  if (!isAll && queues.size === 0) throw invalid('queues', 'Name at least one queue and its handler.')
  if (options.threads !== undefined && served.every(({ handler }) => typeof handler === 'function'))
    throw invalid('threads', 'threads is for handlers given as the URL of a module; here all are functions.')
  const { lease } = options
  return {
    name: checkWorkerName(options.name ?? newWorkerName()),
    concurrency: most,
    leaseMs: lease === undefined ? null : toMs(lease, 'lease', { min: bounds.leaseMinMs, max: bounds.leaseMaxMs }),
    unwindMs: toMs(unwind, 'unwind'),
    middleware: checkMiddleware(middleware),
    gate: checkGate(options.gate),
    sweeps: checkBoolean(sweep, 'sweep'),
    all: isAll ? (checkHandler(first?.[1], { mayBeModule: false }) as Handler) : null,
    queues,
    hasFlows: served.some(({ definition }) => isFlow(definition)),
  }
}

function toServed(pair: readonly unknown[], most: number, threadsOfAll: ThreadsOption | undefined): ServedQueue {
  if (!Array.isArray(pair)) throw invalid('queues', `A queue and its handler are a pair; got ${show(pair)}.`)
  const [queue, handler, options = {}] = pairOf(pair)
  checkOptions(options, 'options of a queue', ['weight', 'concurrency', 'threads'])
  const { weight = 1, concurrency = most, threads = threadsOfAll } = options
  const checked = checkHandler(handler, { mayBeModule: true })
  if (options.threads !== undefined && typeof checked === 'function')
    throw invalid('threads', 'threads is for a handler given as the URL of a module; a function runs in this thread.')
  const checkedThreads = toThreads(threads)
  const limit = checkInteger(concurrency, 'concurrency', 1, bounds.concurrencyMax)
  return {
    definition: toDefinition(queue),
    handler: checked,
    weight: checkNumber(weight, 'weight', 0.001, 1_000),
    limit: typeof checked === 'function' ? limit : Math.min(limit, checkedThreads.count),
    threads: checkedThreads,
  }
}

/** A flow is its own handler: its pair has options in that place. */
function pairOf(pair: readonly unknown[]): readonly [QueueReference, unknown, QueueWorkOptions | undefined] {
  const [queue, second, third] = pair as [QueueReference, unknown, QueueWorkOptions?]
  if (!isFlow(queue)) return [queue, second, third]
  if (typeof second === 'function' || second instanceof URL || third !== undefined) {
    const message = `Flow ${queue.name} has its function in its definition; leave out the handler.`
    throw invalid('handler', message)
  }
  return [queue, handlerOf(queue), second as QueueWorkOptions | undefined]
}

function toThreads(threads: ThreadsOption = {}): ThreadOptions {
  if (typeof threads === 'object') checkOptions(threads, 'threads', ['count', 'maxMemoryMb'])
  const { count = availableParallelism(), maxMemoryMb } = typeof threads === 'object' ? threads : { count: threads }
  return {
    count: checkInteger(count, 'threads', 1, bounds.threadsMax),
    maxMemoryMb: maxMemoryMb === undefined ? null : checkMaxMemory(maxMemoryMb, host),
  }
}

/** Measured: a thread of Bun ignores the limit. A thread of Deno that reaches it never reports its end, so its job would hang. */
export function checkMaxMemory(maxMemoryMb: number, runsIn: Host): number {
  const checked = checkInteger(maxMemoryMb, 'threads.maxMemoryMb', 16, 1_048_576)
  if (runsIn === 'Node.js') return checked
  const message = `${runsIn} does not limit the memory of a thread: leave maxMemoryMb out, or run this worker in Node.js.`
  throw new HoldfastError('UNSUPPORTED', message, { option: 'threads.maxMemoryMb', runtime: runsIn })
}

function checkHandler(handler: unknown, { mayBeModule }: { readonly mayBeModule: boolean }): Handler | HandlerModule {
  if (typeof handler === 'function') return handler as Handler
  if (mayBeModule && handler instanceof URL) return checkModule(handler)
  if (mayBeModule && typeof handler === 'string') {
    const example = `new URL('./handler.js', import.meta.url)`
    throw invalid('handler', `A handler module is given as a URL, not as text: pass ${example}; got ${show(handler)}.`)
  }
  const wanted = mayBeModule ? 'a function, or the URL of a module whose default export is one' : 'a function'
  throw invalid('handler', `A handler is ${wanted}; got ${show(handler)}.`)
}

/**
 * Refuses what can never load. A file that is not there may come later, so it is reported when the worker starts, and is tried
 * again.
 */
function checkModule(module: URL): HandlerModule {
  const why = whyNeverLoads(module)
  if (why === null) return module
  const example = `new URL('./handler.js', import.meta.url)`
  throw invalid('handler', `A handler module is a file: URL, such as ${example}; got ${show(module.href)}${why}.`)
}

function whyNeverLoads(module: URL): string | null {
  const { protocol, href } = module
  if (protocol === 'data:') return isScript.test(href) ? null : ', which is no data: URL of JavaScript'
  if (protocol !== 'file:') return ''
  try {
    fileURLToPath(module)
    return null
  } catch (error) {
    return `, which names no file of this machine: ${(error as Error).message}`
  }
}

/** TypeScript, because some runtimes load that. */
const isScript = /^data:(text|application)\/(java|type)script\s*[;,]/i

function checkMiddleware(middleware: unknown): readonly Middleware[] {
  if (Array.isArray(middleware) && middleware.every((each) => typeof each === 'function')) return [...middleware]
  throw invalid('middleware', 'middleware is an array of functions (job, next).')
}

function checkGate(gate: unknown): WorkerGate | null {
  if (gate === undefined) return null
  if (typeof gate === 'object' && gate !== null && 'whenOpen' in gate && 'passNow' in gate) return gate as WorkerGate
  throw invalid('gate', `gate must be made by holdfast.gate(name); got ${show(gate)}.`)
}

/** Unique among all workers, and readable: it names the host and the process. */
function newWorkerName(): string {
  return `${hostname().slice(0, 100)}-${process.pid}-${newId().slice(-6)}`
}

function invalid(option: string, message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option })
}
