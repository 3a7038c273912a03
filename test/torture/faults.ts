// Stores that break one promise each, now and then: a correct store behind a wrapper that answers wrongly in one place.

import { isRefused } from '../../src/errors.ts'
import type { SettleAnswer, SettleRequest, Store } from '../../src/store/store.ts'
import type { Promised } from './judge.ts'
import type { Break } from './rehearsal.ts'

export const faults: Readonly<Record<string, readonly [Promised, Break]>> = {
  'an answered enqueue that is not stored': [
    'every answered enqueue is stored once, every other at most once, one rolled back never',
    (store) => {
      const isTime = every(5)
      return {
        enqueue: async (requests) =>
          Promise.all(
            requests.map(async (request) => {
              if (request.jobs.some(({ idGiven }) => idGiven) || !isTime()) return only(await store.enqueue([request]))
              return request.jobs.map(({ id }) => ({ id, status: 'created' }) as const)
            }),
          ),
      }
    },
  ],

  'an enqueue that is stored twice': [
    'every answered enqueue is stored once, every other at most once, one rolled back never',
    (store) => {
      const isTime = every(5)
      return {
        enqueue: async (requests) => {
          const again = requests.filter(({ jobs }) => jobs.every(isPlain) && isTime())
          await store.enqueue(
            again.map(({ jobs }) => ({ jobs: jobs.map((job) => ({ ...job, id: crypto.randomUUID() })) })),
          )
          return store.enqueue(requests)
        },
      }
    },
  ],

  'jobs enqueued together of which one is missing': [
    'every answered enqueue is stored once, every other at most once, one rolled back never',
    (store) => ({
      enqueue: async (requests) => {
        const answers = await store.enqueue(requests)
        const [torn] = requests.filter(({ jobs }) => jobs.length > 2)
        if (torn) await store.alter([{ as: 'delete', id: torn.jobs[1]?.id as string }])
        return answers
      },
    }),
  ],

  'a job that comes back after it was deleted': [
    'every answered enqueue is stored once, every other at most once, one rolled back never',
    (store) => ({
      alter: async (requests) => (requests[0]?.as === 'delete' ? [{ state: 'ready' }] : store.alter(requests)),
    }),
  ],

  'a second settlement that is answered like the first': [
    'a settlement is applied with its fence, once, as it was answered',
    (store) => ({
      settle: async (requests) =>
        (await store.settle(requests)).map((answer) =>
          answer === 'lost' ? ({ state: 'done', runAt: null, enqueued: [] } as const) : answer,
        ),
    }),
  ],

  'an answered settlement that was never stored': [
    'a settlement is applied with its fence, once, as it was answered',
    (store) => forgetful(store, ({ settlement }) => settlement.as === 'release'),
  ],

  'a settlement that is stored as another kind': [
    'a settlement is applied with its fence, once, as it was answered',
    (store) => ({
      settle: (requests) =>
        store.settle(
          requests.map((request) =>
            request.settlement.as === 'snooze' ? { ...request, settlement: { as: 'release' } } : request,
          ),
        ),
    }),
  ],

  'two jobs of a claim that share a fence': [
    'a job has one holder at a time, and a fence one claim',
    (store) => ({
      claim: async (request) => {
        const claimed = await store.claim(request)
        return claimed.map((job) => ({ ...job, fence: claimed[0]?.fence as string }))
      },
    }),
  ],

  'a result that is lost': [
    'a settlement is applied with its fence, once, as it was answered',
    (store) => ({
      settle: (requests) =>
        store.settle(
          requests.map((request) =>
            request.settlement.as === 'done'
              ? { ...request, settlement: { ...request.settlement, result: null } }
              : request,
          ),
        ),
    }),
  ],

  'a claim of a job that another claim holds': [
    'a job has one holder at a time, and a fence one claim',
    (store) => {
      const isTime = every(5)
      return {
        claim: async (request) => {
          const claimed = await store.claim(request)
          const again = claimed.slice(0, 1).filter(({ queue }) => queue === 'work' && isTime())
          await store.settle(
            again.map(({ id, fence }) => ({ id, fence, settlement: { as: 'release' }, retryDelayMs: 0 })),
          )
          return claimed
        },
      }
    },
  ],

  'an attempt cap that is not applied': [
    'attempts add up and stay below the cap',
    (store) => ({
      enqueue: (requests) =>
        store.enqueue(requests.map(({ jobs }) => ({ jobs: jobs.map((job) => ({ ...job, maxAttempts: 8 })) }))),
      settle: (requests) => store.settle(requests.map((request) => (isUnlucky(request) ? failing(request) : request))),
    }),
  ],

  'an attempt that is not counted': [
    'attempts add up and stay below the cap',
    (store) => ({
      find: async (query) => {
        const page = await store.find(query)
        return {
          ...page,
          jobs: page.jobs.map(({ history = [], ...job }) => ({
            ...job,
            history: history.filter(({ ending }) => ending !== 'failed'),
          })),
        }
      },
    }),
  ],

  'an effect that is applied although its settlement was lost': [
    'effects are applied all or not at all',
    (store) => ({
      settle: async (requests) => {
        const answers = await Promise.all(await store.settle(requests))
        await putAnyway(
          store,
          requests.filter((_, n) => answers[n] === 'lost'),
        )
        return answers
      },
    }),
  ],

  'effects of which a part is missing': [
    'effects are applied all or not at all',
    (store) => {
      const isTime = every(5)
      return {
        settle: (requests) =>
          store.settle(
            requests.map((request) => {
              const { settlement } = request
              if (!('effects' in settlement) || settlement.effects === null || !isTime()) return request
              return { ...request, settlement: { ...settlement, effects: { ...settlement.effects, put: [] } } }
            }),
          ),
      }
    },
  ],

  'effects of a settlement that failed': [
    'effects are applied all or not at all',
    (store) => ({
      settle: async (requests) => {
        const answers = await Promise.all(await store.settle(requests))
        await putAnyway(
          store,
          requests.filter((_, n) => hasFailed(answers[n])),
        )
        return answers
      },
    }),
  ],

  'effects of a cancel that are dropped': [
    'effects are applied all or not at all',
    (store) => ({ cancel: (requests) => store.cancel(requests.map(({ id }) => ({ id, effects: null }))) }),
  ],

  'a death without a notice': [
    'every death enqueues one notice',
    (store) => ({ define: (queues) => store.define(queues.map((queue) => ({ ...queue, onDead: null }))) }),
  ],

  'a count that is off by one': [
    'counts equal a recount',
    (store) => ({
      stats: async () =>
        (await store.stats()).map((queue) => ({ ...queue, counts: { ...queue.counts, done: queue.counts.done + 1 } })),
    }),
  ],

  'a dedup key with two holders': [
    'a dedup key has one holder, an idempotency key one job',
    (store) => {
      const isTime = every(5)
      return {
        enqueue: async (requests) => {
          // A second job for the same key, as if two enqueues had found it free.
          const twins = requests.filter(({ jobs }) => jobs.some(({ dedup }) => dedup?.scope === 'live') && isTime())
          const answers = await store.enqueue(requests)
          for (const { jobs } of twins) {
            const rest = { idGiven: false, delayMs: 1_000, dedup: null }
            const [job] = jobs.filter(({ dedup }) => dedup?.scope === 'live')
            if (job) await store.enqueue([{ jobs: [{ ...job, ...rest, id: crypto.randomUUID() }] }])
          }
          return answers
        },
        find: async (query) => {
          const page = await store.find(query)
          return {
            ...page,
            jobs: page.jobs.map((job) => ({ ...job, dedupKey: job.dedupKey ?? keyIn(job.payload ?? '') })),
          }
        },
      }
    },
  ],

  'an idempotency key that is forgotten': [
    'a dedup key has one holder, an idempotency key one job',
    (store) => ({
      enqueue: (requests) =>
        store.enqueue(requests.map(({ jobs }) => ({ jobs: jobs.map((job) => ({ ...job, idempotency: null })) }))),
    }),
  ],

  'a replacement that is not made': [
    'a dedup key has one holder, an idempotency key one job',
    (store) => ({
      enqueue: async (requests) =>
        (
          await Promise.all(
            await store.enqueue(
              requests.map(({ jobs }) => ({
                jobs: jobs.map((job) => ({ ...job, dedup: job.dedup && { ...job.dedup, replace: false } })),
              })),
            ),
          )
        ).map((answer) =>
          isRefused(answer)
            ? answer
            : answer.map((each) => (each.status === 'created' ? each : { ...each, status: 'replaced' })),
        ),
    }),
  ],

  'a compare-and-set that does not compare': [
    'kv counters equal the increments',
    (store) => ({
      kvWrite: (writes) =>
        store.kvWrite(writes.map((write) => (write.as === 'compareAndSet' ? { ...write, as: 'put' } : write))),
      kvGet: async (key) => {
        const entry = await store.kvGet(key)
        return (
          entry && {
            ...entry,
            value: String(Math.max(0, Number(entry.value) - (Number(entry.value) % 7 === 0 ? 1 : 0))),
          }
        )
      },
    }),
  ],

  'an increment that is lost': [
    'kv counters equal the increments',
    (store) => {
      const isTime = every(5)
      return {
        kvWrite: async (writes) => {
          if (writes.every(({ as }) => as === 'compareAndSet') && isTime())
            return writes.map(() => ({ applied: true, version: 1 }))
          return store.kvWrite(writes)
        },
      }
    },
  ],

  'a write after which an older value is stored': [
    'the last write wins',
    (store) => ({
      kvWrite: (writes) =>
        store.kvWrite(
          writes.map((write) =>
            write.key.startsWith('own ') ? { as: 'put', key: write.key, value: '"older"', ttlMs: null } : write,
          ),
        ),
    }),
  ],

  'a priority that is forgotten': [
    'the last write wins',
    (store) => ({
      alter: async (requests) => (requests[0]?.as === 'reprioritise' ? [{ state: 'ready' }] : store.alter(requests)),
    }),
  ],

  'a wake that loses its data': [
    'the last write wins',
    (store) => ({
      alter: (requests) =>
        store.alter(requests.map((request) => (request.as === 'wake' ? { ...request, data: null } : request))),
    }),
  ],

  'a pause that does not hold': [
    'a claim gets nothing from a paused queue',
    (store) => ({ pause: (queue, paused) => store.pause(queue, paused && !queue.startsWith('own-')) }),
  ],

  'a lease that does not end': [
    'lost jobs come back',
    (store) => ({ claim: (request) => store.claim({ ...request, leaseMs: 3_600_000 }) }),
  ],

  'a job that no claim finds': [
    'no ready job is hidden',
    (store) => ({
      claim: (request) =>
        store.claim({ ...request, queues: (request.queues ?? ['work', 'after']).filter(isNot('deaths')) }),
    }),
  ],
}

/** Returns true once in `count` calls. */
function every(count: number): () => boolean {
  let times = 0
  return () => ++times % count === 0
}

const only = <T>(list: readonly T[]) => list[0] as T
const isNot = (one: string) => (other: string) => other !== one

function isPlain({ idGiven, dedup, idempotency }: { idGiven: boolean; dedup: unknown; idempotency: unknown }): boolean {
  return !idGiven && dedup === null && idempotency === null
}

function hasFailed(answer: SettleAnswer | undefined): boolean {
  return typeof answer === 'object' && 'failed' in answer
}

/** One in sixteen jobs, by its id. */
const isUnlucky = ({ id }: SettleRequest) => id.endsWith('0')

function failing(request: SettleRequest): SettleRequest {
  return { ...request, settlement: { as: 'retry', error: { message: 'once more' }, delayMs: 0, ending: 'failed' } }
}

function forgetful(store: Store, isForgotten: (request: SettleRequest) => boolean): Partial<Store> {
  return {
    settle: async (requests) => {
      const kept = requests.filter((request) => !isForgotten(request))
      const answers = await store.settle(kept)
      return requests.map((request) =>
        isForgotten(request)
          ? { state: 'ready', runAt: null, enqueued: [] }
          : (answers[kept.indexOf(request)] as SettleAnswer),
      )
    },
  }
}

async function putAnyway(store: Store, requests: readonly SettleRequest[]): Promise<void> {
  const puts = requests.flatMap(({ settlement }) => ('effects' in settlement ? (settlement.effects?.put ?? []) : []))
  await store.kvWrite(puts.map((put) => ({ as: 'put', ...put })))
}

/** The key that a job with this payload would have had; there is only one. */
function keyIn(payload: string): string | null {
  return JSON.parse(payload).kind === 'live' ? 'live 0' : null
}
