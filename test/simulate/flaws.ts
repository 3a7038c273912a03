// Stores and workers that break one promise each. The judge must catch every one of them.

import type { Waiters } from '../../src/client/waiters.ts'
import type { SettleRequest, Store } from '../../src/store/store.ts'
import { ClaimLoop, type ClaimLoopContext, type WorkerLoop } from '../../src/worker/claim-loop.ts'
import { Turns } from '../../src/worker/turns.ts'
import { faults as modelFaults } from '../model/faults.ts'
import { faults as crashFaults } from '../torture/faults.ts'
import type { Flaw } from './simulate.ts'

export const flaws: Readonly<Record<string, readonly [promise: string, Flaw]>> = {
  'a settle that ignores the fence': [
    'only the holder of a job settles it',
    ofModel('a settle that ignores the fence'),
  ],
  'a renew that ignores the fence': ['only the holder of a job renews it', ofModel('a renew that ignores the fence')],
  'a claim that returns the same jobs to two callers': [
    'a job has one holder at a time',
    ofModel('a claim that returns the same jobs to two callers'),
  ],
  'a sweep that forgets the attempt cap': [
    'attempts add up and stay below the cap',
    ofModel('a sweep that forgets the attempt cap'),
  ],
  'a claim of paused queues': ['a claim gets nothing from a paused queue', { store: unpaused }],
  'a store that forgets the limit of a queue': [
    'limits hold at every moment',
    ofModel('a store that forgets the limit of a queue'),
  ],
  'a store that forgets the limit of a key': [
    'limits hold at every moment',
    ofModel('a store that forgets the limit of a key'),
  ],
  'a pause that lets items start': ['a paused batch starts nothing', ofModel('a pause that lets items start')],
  'a checkpoint that ignores the fence': [
    'only the holder of a run writes its journal',
    ofModel('a checkpoint that ignores the fence'),
  ],
  'a refused checkpoint that uses up its signals all the same': [
    'every flow run ends',
    ofModel('a refused checkpoint that uses up its signals all the same'),
  ],
  'a park that forgets a wake-up': ['every flow run ends', ofModel('a park that forgets a wake-up')],
  'a signal that is stored twice': ['a message is used up once', { store: signalTwice }],
  'a completion that is enqueued twice': ['a round has one completion', ofModel('a completion that is enqueued twice')],
  'counts that forget the dead': ['a batch counts its items', ofModel('counts that forget the dead')],
  ...Object.fromEntries(
    [
      'an answered enqueue that is not stored',
      'an enqueue that is stored twice',
      'an answered settlement that was never stored',
      'an effect that is applied although its settlement was lost',
      'effects of which a part is missing',
      'effects of a settlement that failed',
      'a death without a notice',
      'a count that is off by one',
    ].map((name) => {
      const [promise, store] = crashFaults[name] as (typeof crashFaults)[string]
      return [name, [promise, { store }] as const]
    }),
  ),

  'a heartbeat that stops early': ['a healthy worker keeps its leases', { wire: skipRenewals }],
  'a worker that does not see that a lease is lost': ['a run whose lease is lost is aborted', { wire: ignoreLost }],
  'a worker that does not see a cancel request': ['a run of a cancelled job is aborted', { wire: ignoreCancels }],
  'a settlement that is answered before it commits': ['every event has happened', { wire: settleEarly }],
  'an enqueue that is answered before it commits': [
    'every answered enqueue is stored once, every other at most once, one rolled back never',
    { wire: enqueueEarly },
  ],
  'a settlement that is not sent again': ['a surviving worker is healthy', { wire: onlyOnce }],
  'a worker that never sweeps': ['lost jobs come back', { wire: withoutSweeps }],
  'a worker that only looks when it is woken': ['no ready job is hidden', { makeLoop: onlyWoken }],
  'a slot that fires beside its cursor': ['a slot fires once', { store: fireAnyway }],
  'a change that no watcher gets': ['watchers get every change', { store: forgetChanges }],
}

function ofModel(name: string): Flaw {
  return { store: modelFaults[name] as NonNullable<Flaw['store']> }
}

function unpaused(store: Store): Partial<Store> {
  return {
    claim: async (request) => {
      const paused = (await store.stats()).filter((queue) => queue.paused).map(({ queue }) => queue)
      for (const queue of paused) await store.pause(queue, false)
      const claimed = await store.claim(request)
      for (const queue of paused) await store.pause(queue, true)
      return claimed
    },
  }
}

function signalTwice(store: Store): Partial<Store> {
  return {
    signal: async (requests) => {
      await store.signal(requests)
      return store.signal(requests)
    },
  }
}

function skipRenewals(): Partial<Store> {
  return {
    renew: async (requests) => requests.map(() => ({ expiresAt: Number.MAX_SAFE_INTEGER, cancelRequested: false })),
  }
}

function ignoreLost(store: Store): Partial<Store> {
  return {
    renew: async (requests) =>
      (await store.renew(requests)).map((answer) =>
        answer === 'lost' ? { expiresAt: Number.MAX_SAFE_INTEGER, cancelRequested: false } : answer,
      ),
  }
}

function ignoreCancels(store: Store): Partial<Store> {
  return {
    cancelRequested: async (holds) => holds.map(() => false),
    renew: async (requests) =>
      (await store.renew(requests)).map((answer) =>
        typeof answer === 'object' && 'expiresAt' in answer ? { ...answer, cancelRequested: false } : answer,
      ),
  }
}

function settleEarly(store: Store): Partial<Store> {
  const stateOf = ({ settlement: { as } }: SettleRequest) =>
    as === 'done' || as === 'dead' || as === 'cancelled' ? as : 'ready'
  return {
    settle: async (requests, token) => {
      store.settle(requests, token).catch(() => undefined)
      return requests.map((request) => ({ state: stateOf(request), runAt: null, enqueued: [] }))
    },
  }
}

function enqueueEarly(store: Store): Partial<Store> {
  return {
    enqueue: async (requests) => {
      store.enqueue(requests).catch(() => undefined)
      return requests.map(({ jobs }) => jobs.map(({ id }) => ({ id, status: 'created' as const })))
    },
  }
}

/** A call that fails once is never answered. */
function onlyOnce(store: Store): Partial<Store> {
  return { settle: (requests, token) => store.settle(requests, token).catch(() => new Promise(() => {})) }
}

function withoutSweeps(): Partial<Store> {
  const counts = { rescued: 0, promoted: 0, overdue: 0, admitted: 0, pruned: 0 }
  const nothing = { ...counts, expired: [], more: false, nextDueAt: null, now: 0 }
  return { sweep: async () => nothing }
}

/** Sleeps until it is woken, however long that takes. */
function onlyWoken(context: ClaimLoopContext, halt: AbortSignal): WorkerLoop {
  const withoutBackstop = new Proxy(context.waiters, {
    get: (waiters: Waiters, name) => {
      if (name !== 'join') return bound(waiters, name)
      return (queues: readonly string[] | null) => {
        const waiter = waiters.join(queues)
        const rouse = waiter.rouse.bind(waiter)
        waiter.rouse = () => halt.aborted && rouse()
        return waiter
      }
    },
  })
  const shares = (context.queues ?? []).map((name) => ({ name, weight: 1, limit: 100 }))
  return new ClaimLoop({ ...context, waiters: withoutBackstop }, new Turns(shares), halt)
}

function bound(target: object, name: string | symbol): unknown {
  const value: unknown = Reflect.get(target, name)
  return typeof value === 'function' ? value.bind(target) : value
}

function fireAnyway(store: Store): Partial<Store> {
  return {
    advance: async (request) => {
      const answer = await store.advance(request)
      if (answer === 'stale') await store.enqueue([{ jobs: request.jobs }])
      return answer
    },
  }
}

function forgetChanges(store: Store): Partial<Store> {
  return {
    changes: async (query) => {
      const page = await store.changes(query)
      return { ...page, changes: page.changes.filter((_, n) => n % 20 !== 19) }
    },
  }
}
