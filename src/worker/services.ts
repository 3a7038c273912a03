// How each queue of a worker is served: its definition, its handler with the middleware around it, and for a handler in a
// module the pool of threads that runs it.

import type { Events } from '../events.ts'
import { type AnyDefinition, defineQueue } from '../queue/definition.ts'
import { compose } from './middleware.ts'
import type { Handler, HandlerModule, Plan, ServedQueue } from './options.ts'
import type { Service } from './run.ts'
import { loadMs as loadMinMs, type StuckThread, ThreadPool, type ThreadPoolListener } from './threads/thread-pool.ts'

export interface ServicesContext {
  readonly events: Events
  /** The definition to use; for a queue that is served by name, what is stored. */
  definitionFor(definition: AnyDefinition): AnyDefinition
  /** At most this many jobs of the queue can run at a time from now on. */
  limited(queue: string, most: number): void
  /** A handler module does not load. */
  unloadable(error: Error): void
}

/** The most queues that a worker for every queue keeps a service for. */
const servicesMax = 1_000

export class Services {
  readonly #context: ServicesContext
  readonly #plan: Plan
  readonly #services = new Map<string, Service>()
  readonly #pools = new Map<string, ThreadPool>()

  constructor(context: ServicesContext, plan: Plan) {
    this.#context = context
    this.#plan = plan
    for (const [name, queue] of plan.queues) this.#services.set(name, this.#toService(queue))
  }

  /** Of handlers in modules, by queue. */
  get pools(): ReadonlyMap<string, ThreadPool> {
    return this.#pools
  }

  get stuckThreads(): readonly StuckThread[] {
    return [...this.#pools.values()].flatMap(({ stuck }) => stuck)
  }

  serviceOf(queue: string): Service {
    const service = this.#services.get(queue) ?? this.#add(queue)
    const definition = this.#context.definitionFor(service.definition)
    return definition === service.definition ? service : { ...service, definition }
  }

  /** Starts to load every handler module. */
  load(): void {
    for (const pool of this.#pools.values()) pool.load()
  }

  async close(): Promise<void> {
    await Promise.all([...this.#services.values()].map((service) => service.close?.()))
  }

  /** A worker for every queue meets queues that its plan does not name. */
  #add(queue: string): Service {
    const { all, middleware } = this.#plan
    const service = { definition: defineQueue(queue), call: compose(all as Handler, middleware) }
    if (this.#services.size < servicesMax) this.#services.set(queue, service)
    return service
  }

  #toService(queue: ServedQueue): Service {
    const { definition, handler } = queue
    const { middleware } = this.#plan
    if (typeof handler === 'function') return { definition, call: compose(handler, middleware) }
    const pool = this.#toPool(queue, handler)
    this.#pools.set(definition.name, pool)
    return {
      definition,
      call: compose((job) => pool.run(job), middleware),
      kill: (job) => pool.kill(job),
      close: () => pool.close(),
    }
  }

  #toPool({ definition, threads, limit }: ServedQueue, module: HandlerModule): ThreadPool {
    const loadMs = Math.max(loadMinMs, definition.timeoutMs)
    const listener = this.#listener({ queue: definition.name, module: module.href, limit })
    return new ThreadPool(module, threads, listener, { loadMs })
  }

  /** Emits what a pool reports as events of this worker. */
  #listener({ queue, module, limit }: { queue: string; module: string; limit: number }): ThreadPoolListener {
    const { events, limited, unloadable } = this.#context
    const { name: worker } = this.#plan
    return {
      unloadable: (error) => {
        events.emit('module.failed', { worker, queue, module, error })
        unloadable(error)
      },
      loadable: (failedMs) => events.emit('module.loaded', { worker, queue, module, failedMs }),
      most: (most) => limited(queue, Math.min(limit, most)),
      stuck: ({ thread, work: { since: _, ...job }, reason }) =>
        events.emit('thread.stuck', { ...job, worker, thread, reason, stuck: this.stuckThreads.length }),
      freed: ({ thread, work: { since: _, ...job }, since }) => {
        const stuckMs = Date.now() - since
        events.emit('thread.freed', { ...job, worker, thread, stuckMs, stuck: this.stuckThreads.length })
      },
      leftover: (thread, { kind, of, current, error }) =>
        events.emit('thread.leftover', { worker, queue, thread, kind, job: of?.id ?? null, current, error }),
    }
  }
}
