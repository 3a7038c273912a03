// Builds the parts of one client and connects them. `Holdfast` is the public face; every part that it calls is made here.
//
//   enqueue   a queue → enqueues (grouped) → store
//   claim     claims (by hand) or a worker → store; both wait in `waiters` until the store's wake-up
//   settle    a lease → settles (grouped) → store; a worker groups its own settlements
//   sweep     sweeps (a loop beside the workers) → sweeper → store
//   schedule  scheduleLoop (a loop beside the workers) → firing → enqueues
//   watch     watches → store; each call of this client that may have changed a job is a hint to look at once
//
// Spans are added here, because no part below `observe/` may import it.

import type { BatchContext } from './batch/batch.ts'
import { Batches } from './batch/batches.ts'
import { Bulk } from './client/bulk.ts'
import { Calls, closedError } from './client/calls.ts'
import { Group } from './client/group.ts'
import { Jobs } from './client/jobs.ts'
import { Queues } from './client/queues.ts'
import { toWanted } from './client/requests.ts'
import { Results } from './client/results.ts'
import { Stall } from './client/stall.ts'
import { Waiters } from './client/waiters.ts'
import { Watches } from './client/watch.ts'
import { checkpointWeight, kvWeight, settleWeight, weightMax } from './client/weight.ts'
import { Events } from './events.ts'
import { Flows } from './flow/flows.ts'
import { checkOptions } from './job/names.ts'
import type { KvWrite, NewJob } from './job/record.ts'
import { effectsIn } from './job/settlement.ts'
import { Kv, type KvContext } from './kv/kv.ts'
import { ManualClaims } from './lease/claim.ts'
import type { Lease, LeaseContext } from './lease/lease.ts'
import { logTo } from './observe/log.ts'
import type { Logger } from './observe/logger.ts'
import { traceEffects, traceSend, traceSettle } from './observe/tracing.ts'
import type { AnyDefinition } from './queue/definition.ts'
import { keepable, prepareEffects } from './queue/effects.ts'
import { Enqueues } from './queue/enqueue.ts'
import { emitEnqueued } from './queue/enqueued-event.ts'
import { type ClaimOptions, Queue, type QueueContext } from './queue/queue.ts'
import { type QueueReference, toDefinition } from './queue/reference.ts'
import { Definitions } from './queue/stored-definitions.ts'
import { orAborted } from './runtime/aborted.ts'
import { systemTimers, type Timers } from './runtime/clock.ts'
import { toMs } from './runtime/duration.ts'
import { isDisabled } from './runtime/kill-switch.ts'
import { Firing } from './schedule/firing.ts'
import { ScheduleLoop } from './schedule/schedule-loop.ts'
import { Schedules } from './schedule/schedules.ts'
import type {
  CheckpointAnswer,
  CheckpointRequest,
  ItemsRequest,
  KvAnswer,
  ProgressAnswer,
  ProgressRequest,
  RenewAnswer,
  RenewRequest,
  SettleAnswer,
  SettleRequest,
  Store,
  Subscriber,
} from './store/store.ts'
import { Reaper } from './sweep/reaper.ts'
import type { ReaperPlan, Revival } from './sweep/reaper-options.ts'
import { SweepLoop } from './sweep/sweep-loop.ts'
import { Sweeper } from './sweep/sweeper.ts'
import { Gates } from './worker/gate/gates.ts'
import type { Plan } from './worker/options.ts'
import {
  type FlowTime,
  hurriedTimeoutMs,
  type MakeLoop,
  type StopOptions,
  stopTimeoutMs,
  Worker,
  type WorkerContext,
} from './worker/worker.ts'

/** What a client is made with, beside its store. */
export interface HoldfastParts {
  readonly timers?: Timers
  readonly events?: Events
  /** Where log lines go; stderr if it is left out, nowhere if it is `false`. */
  readonly logger?: Logger | false | undefined
  /** At least 0 and below 1: the jitter of backoff and pauses. */
  readonly random?: () => number
}

/** How a worker of `holdfast/testing` differs from others. */
export interface WorkerWays {
  readonly makeLoop: MakeLoop
  readonly random: () => number
  readonly flowTime?: FlowTime
}

export class Wiring {
  readonly store: Store
  readonly events: Events
  readonly stall: Stall
  readonly calls: Calls = new Calls(() => this.watches.hint())
  readonly kv: Kv
  /** For entries of Holdfast itself. */
  readonly #ownKv: Kv
  readonly jobs: Jobs
  readonly bulk: Bulk
  readonly queues: Queues
  readonly watches: Watches
  readonly batches: Batches
  readonly gates: Gates
  readonly flows: Flows
  readonly schedules: Schedules
  readonly scheduleLoop: ScheduleLoop
  readonly firing: Firing
  readonly sweeper: Sweeper
  readonly batchContext: BatchContext
  readonly queueContext: QueueContext
  readonly #timers: Timers
  readonly #random: () => number
  readonly #stopLog: () => void
  readonly #unsubscribe: () => void
  readonly #waiters: Waiters
  readonly #sweeps: SweepLoop
  readonly #definitions: Definitions
  readonly #enqueues: Enqueues
  readonly #claims: ManualClaims
  readonly #results: Results
  readonly #settles: Group<SettleRequest, SettleAnswer>
  readonly #workers = new Set<Worker>()
  readonly #reapers = new Set<Reaper>()
  readonly #cancelListeners = new Set<(ids: readonly string[] | null) => void>()
  #closing: Promise<void> | null = null
  /** Aborts when `close` gives up what the store has not answered. */
  readonly #over = new AbortController()
  #timeoutMs = stopTimeoutMs
  #giveUpAt = Number.POSITIVE_INFINITY
  #callOff: (() => void) | null = null
  /** Workers and reapers have stopped, so the timeout of `close` has begun. */
  #isGivingUp = false

  constructor(store: Store, parts: HoldfastParts = {}) {
    const { timers = systemTimers, events = new Events(), logger, random = Math.random } = parts
    this.store = store
    this.events = events
    this.#timers = timers
    this.#random = random
    this.#stopLog = logTo(events, logger)
    this.stall = new Stall(events)

    this.#waiters = new Waiters(timers)
    this.sweeper = new Sweeper(store, events, { timers, random })
    this.#sweeps = new SweepLoop(this.sweeper, timers)
    this.#unsubscribe = store.subscribe(this.#subscriber())
    this.#results = new Results((ids) => store.outcomes(ids))
    this.watches = new Watches({
      watch: () => this.calls.look(() => store.watch()),
      changes: (query) => this.calls.look(() => store.changes(query)),
    })

    this.#definitions = new Definitions(store, timers)
    this.#enqueues = new Enqueues({
      ...{ store, events, waiters: this.#waiters, sweeper: this.sweeper, definitions: this.#definitions },
    })
    this.#settles = new Group({ flush: (requests) => store.settle(requests), weigh: settleWeight, weightMax })
    this.queueContext = this.#queueContext()
    this.#claims = this.#manualClaims()

    const kv = this.#kvContext()
    this.kv = new Kv(kv)
    this.#ownKv = new Kv(kv, true)
    this.jobs = this.#jobs()
    this.bulk = new Bulk({ store: this.store, calls: this.calls, expectDue: (delayMs) => this.sweeper.expect(delayMs) })
    this.queues = new Queues(store, this.calls)
    this.gates = new Gates({ kv: this.#ownKv, events })
    this.flows = new Flows({ store, calls: this.calls, timers })
    this.batchContext = this.#batchContext()
    this.batches = new Batches(this.batchContext)

    const schedulesContext = {
      ...{ store, events },
      define: (definition: AnyDefinition) => this.#enqueues.define(definition),
      enqueue: (job: NewJob) => this.#enqueues.enqueueOne(job),
      expect: (delayMs: number) => this.sweeper.expect(delayMs),
    }
    this.schedules = new Schedules(schedulesContext)
    this.firing = new Firing(schedulesContext, this.schedules)
    this.scheduleLoop = new ScheduleLoop(this.firing, events, { timers, random })
    this.sweeper.onLook = (mark, now) => {
      this.#waiters.looked()
      this.scheduleLoop.looked(mark, now)
    }
  }

  async claim(queues: '*' | readonly QueueReference[], options: ClaimOptions): Promise<Lease[]> {
    const wanted = toWanted(queues, options)
    for (const definition of wanted.definitions?.values() ?? []) {
      await this.calls.run(async () => this.#enqueues.define(definition))
    }
    return this.#claims.claim(wanted)
  }

  startWorker(plan: Plan, ways?: WorkerWays): Worker {
    if (this.#closing) throw closedError()
    const worker = new Worker(this.#workerContext(ways), plan, ways?.makeLoop)
    this.#workers.add(worker)
    const forget = () => this.#workers.delete(worker)
    worker.finished.then(forget, forget)
    return worker
  }

  startReaper(name: string, plan: ReaperPlan): Reaper {
    if (this.#closing) throw closedError()
    const context = {
      ...{ kv: this.#ownKv, events: this.events, timers: this.#timers },
      time: () => this.calls.look(() => this.store.time()),
      enqueue: ({ queue, payload, ...rest }: Revival) =>
        new Queue(this.queueContext, toDefinition(queue)).enqueue(payload, rest),
      stopped: (each: Reaper) => void this.#reapers.delete(each),
    }
    const reaper = new Reaper(context, name, plan)
    this.#reapers.add(reaper)
    return isDisabled('reap') ? reaper : reaper.start()
  }

  async close(options: StopOptions): Promise<void> {
    checkOptions(options, 'close options', ['grace', 'timeout'])
    const graceMs = options.grace === undefined ? null : toMs(options.grace, 'grace')
    const timeoutMs = toMs(options.timeout ?? stopTimeoutMs, 'timeout')
    const isHurried = this.#closing !== null && graceMs === 0
    this.#timeoutMs = Math.min(this.#timeoutMs, timeoutMs, isHurried ? hurriedTimeoutMs : timeoutMs)
    if (this.#isGivingUp) this.#giveUpAfter(this.#timeoutMs)
    const stopped = [...this.#workers, ...this.#reapers].map((each) => each.stop(options))
    this.#closing ??= this.#close(stopped)
    for (const stop of stopped) stop.catch(() => undefined) // the worker that failed has reported it
    return this.#closing
  }

  /**
   * Each step is bounded:
   *
   *   workers     their grace period, the time to unwind and the timeout
   *   calls       the timeout. A call that waits for another open transaction ends with CLOSED before. A call of which only the
   *               application knows when it ends (a schema that never answers) is not awaited any longer
   *   the store   ends with its calls. When the timeout is over, it ends its connections or its thread all the same
   *
   * What was not carried out is in the store as it was: an expired lease is rescued, a reaper finds its rows again.
   */
  async #close(stopped: readonly Promise<void>[]): Promise<void> {
    this.watches.close()
    if (stopped.length > 0) await Promise.allSettled(stopped) // handlers that still run may still call
    this.calls.refuse()
    const over = this.#over.signal
    this.#isGivingUp = true
    this.#giveUpAfter(this.#timeoutMs)
    this.store.stopWaiting?.(over)
    this.watches.close() // those that handlers have opened since
    await orAborted(this.#sweeps.idle(), over)
    await orAborted(this.scheduleLoop.idle(), over)
    this.#unsubscribe()
    this.#waiters.wakeAll()
    this.#results.close()
    this.gates.end()
    await orAborted(this.calls.ended(), over)
    this.#stopLog()
    await this.store.close()
    this.#callOff?.()
  }

  /** The earliest time counts. */
  #giveUpAfter(ms: number): void {
    const at = this.#timers.now() + ms
    if (at >= this.#giveUpAt) return
    this.#giveUpAt = at
    this.#callOff?.()
    this.#callOff = this.#timers.after(ms, () => this.#over.abort())
  }

  #subscriber(): Subscriber {
    const { events } = this
    return {
      onReady: (queue, count) => {
        this.#waiters.wake(queue, count)
        this.watches.hint()
      },
      onCancel: (ids) => {
        for (const listener of this.#cancelListeners) listener(ids)
      },
      onNoticeDropped: (death) => events.emit('notice.dropped', death),
      onFinished: ({ batchId: batch, completion, ...facts }) => {
        if (completion) emitEnqueued(events, [completion], [completion])
        events.emit('batch.finished', { batch, ...facts })
      },
      onUndeliverable: (job) => events.emit('job.undeliverable', job),
      onStalled: (stall) => this.stall.changed(stall),
    }
  }

  #queueContext(): QueueContext {
    return {
      run: (action) => this.calls.run(action),
      enqueue: (definition, jobs, tx) => traceSend(jobs, (traced) => this.#enqueues.enqueue(definition, traced, tx)),
      mayWaitBefore: (tx) => !this.#enqueues.takesAtOnce(tx),
      claim: (definition, options) => this.claim([definition], options),
      result: (id, options) => this.jobs.result(id, options),
    }
  }

  #manualClaims(): ManualClaims {
    const { store } = this
    const renews = new Group<RenewRequest, RenewAnswer>({
      flush: (requests) => store.renew(requests),
      weigh: () => 1,
      weightMax,
    })
    const progress = new Group<ProgressRequest, ProgressAnswer>({
      flush: (requests) => store.progress(requests),
      weigh: () => 1,
      weightMax,
    })
    const checkpoints = new Group<CheckpointRequest, CheckpointAnswer>({
      flush: (requests) => store.checkpoint(requests),
      weigh: checkpointWeight,
      weightMax,
    })
    const leaseContext: LeaseContext = {
      capabilities: store.capabilities,
      define: (definition) => this.#enqueues.define(definition),
      run: (action) => this.calls.run(action),
      renew: (request) => renews.add(request),
      progress: (request) => progress.add(request),
      settle: (request) => traceSettle(request, (traced) => this.#settle(traced)),
      checkpoint: async (request) => {
        const effects = traceEffects(request.effects)
        const answer = await checkpoints.add({ ...request, effects })
        if (effects && typeof answer === 'object' && 'enqueued' in answer)
          emitEnqueued(this.events, effects.enqueue, answer.enqueued)
        return answer
      },
      random: this.#random,
    }
    return new ManualClaims({
      ...{ timers: this.#timers, waiters: this.#waiters, sweeper: this.sweeper },
      ...{ leaseContext, definitions: this.#definitions },
      claim: (request) => store.claim(request),
    })
  }

  #settle(request: SettleRequest): Promise<SettleAnswer> {
    const { settlement } = request
    if ('delayMs' in settlement) this.sweeper.expect(settlement.delayMs)
    const answered = this.#settles.add(request)
    if (this.#results.size > 0) answered.then(() => this.#results.hint(request.id)).catch(() => undefined)
    const effects = effectsIn(settlement)
    if (effects === null) return answered
    const { enqueue } = effects
    return answered.then((answer) => {
      if (typeof answer === 'object' && 'enqueued' in answer) emitEnqueued(this.events, enqueue, answer.enqueued)
      return answer
    })
  }

  #kvContext(): KvContext {
    const { store, calls } = this
    const writes = new Group<KvWrite, KvAnswer>({ flush: (group) => store.kvWrite(group), weigh: kvWeight, weightMax })
    return {
      get: (key) => calls.run(() => store.kvGet(key)),
      scan: (query) => calls.run(() => store.kvScan(query)),
      write: (write) => calls.run(() => writes.add(write)),
    }
  }

  #jobs(): Jobs {
    const { store, calls } = this
    const define = (definition: AnyDefinition) => this.#enqueues.define(definition)
    return new Jobs({
      ...{ store, calls, results: this.#results },
      enqueued: (jobs, enqueued) => emitEnqueued(this.events, jobs, enqueued),
      prepareEffects: async (effects) =>
        traceEffects(keepable(await prepareEffects(effects, store.capabilities, define))),
      expectDue: (delayMs) => this.sweeper.expect(delayMs),
    })
  }

  #batchContext(): BatchContext {
    const { store, events, calls } = this
    const addItems = (request: ItemsRequest) =>
      traceSend(request.jobs, (jobs) => this.#enqueues.addItems({ ...request, jobs }))
    return {
      ...{ store, events },
      run: (action) => calls.run(action),
      look: (action) => calls.look(action),
      define: (definition) => this.#enqueues.define(definition),
      addItems: (request) => calls.run(() => addItems(request)),
    }
  }

  #workerContext({ random = this.#random, flowTime }: Partial<WorkerWays> = {}): WorkerContext {
    return {
      ...(flowTime && { flowTime }),
      ...{ store: this.store, events: this.events, timers: this.#timers, random },
      ...{ waiters: this.#waiters, sweeps: this.#sweeps, schedules: this.scheduleLoop },
      define: (definition) => this.#enqueues.define(definition),
      definitions: this.#definitions,
      settling: (requests) => {
        for (const { settlement } of requests) if ('delayMs' in settlement) this.sweeper.expect(settlement.delayMs)
      },
      settled: (requests) => {
        if (this.#results.size > 0) for (const { id } of requests) this.#results.hint(id)
      },
      onStalled: (listener) => this.stall.join(listener),
      onCancel: (listener) => {
        this.#cancelListeners.add(listener)
        return () => this.#cancelListeners.delete(listener)
      },
    }
  }
}
