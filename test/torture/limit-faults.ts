// Stores that break a promise about limits or batches: a correct store behind a wrapper that answers wrongly in one place.

import type { BatchRecord } from '../../src/job/batch.ts'
import type { LimitSettings } from '../../src/job/record.ts'
import type { Store } from '../../src/store/store.ts'
import type { Promised } from './judge.ts'
import type { Break } from './rehearsal.ts'

const atOnce = 'of a queue, a key and a batch no more jobs run at once than allowed'
const items = 'a batch has each of its items once, and counts how they ended'
const starts = 'no more jobs start within a time window than allowed'
const completion = 'the completion of a batch is enqueued once a round'

export const limitFaults: Readonly<Record<string, readonly [Promised, Break]>> = {
  'a queue that forgets its limit': [
    atOnce,
    (store) => defining(store, ({ limit, ...rest }) => ({ ...rest, limit: limit && { ...limit, concurrency: null } })),
  ],

  'a queue that forgets the limit of its keys': [
    atOnce,
    (store) =>
      defining(store, ({ keyLimit, ...rest }) => ({
        ...rest,
        keyLimit: keyLimit && { ...keyLimit, concurrency: null },
      })),
  ],

  'a batch that forgets its limit': [
    atOnce,
    (store) => {
      const limits = new Map<string, number | null>()
      const asOpened = (batch: BatchRecord) => ({ ...batch, concurrency: limits.get(batch.id) ?? null })
      return {
        openBatch: (settings) => {
          limits.set(settings.id, settings.concurrency)
          return store.openBatch({ ...settings, concurrency: null })
        },
        batches: async (query) => {
          const page = await store.batches(query)
          return { ...page, batches: page.batches.map(asOpened) }
        },
      }
    },
  ],

  'a queue that forgets its rate': [
    starts,
    (store) => defining(store, ({ limit, ...rest }) => ({ ...rest, limit: limit && { ...limit, rate: null } })),
  ],

  'a queue that forgets the rate of its keys': [
    starts,
    (store) =>
      defining(store, ({ keyLimit, ...rest }) => ({ ...rest, keyLimit: keyLimit && { ...keyLimit, rate: null } })),
  ],

  'an item that is lost after it was added': [
    items,
    (store) => ({
      addItems: async ({ jobs, ...request }) => {
        const answer = await store.addItems({ ...request, jobs })
        const last = jobs.at(-1)
        if (last) await store.alter([{ as: 'delete', id: last.id }])
        return answer
      },
    }),
  ],

  'an item that is added twice': [
    items,
    (store) => ({
      addItems: async (request) => {
        const answer = await store.addItems(request)
        const again = request.jobs.slice(0, 1).map((job) => ({ ...job, id: crypto.randomUUID() }))
        await store.addItems({ ...request, at: null, jobs: again })
        return answer
      },
    }),
  ],

  'a count of a batch that is off by one': [
    items,
    (store) => ({
      batches: async (query) => {
        const page = await store.batches(query)
        return { ...page, batches: page.batches.map((batch) => ({ ...batch, done: batch.done + 1 })) }
      },
    }),
  ],

  'an outcome that is lost': [
    items,
    (store) => ({
      settle: (requests) =>
        store.settle(
          requests.map(({ settlement, ...request }) =>
            settlement.as === 'done'
              ? { ...request, settlement: { as: 'done', result: settlement.result, effects: settlement.effects } }
              : { ...request, settlement },
          ),
        ),
    }),
  ],

  'a cost that is counted twice': [
    items,
    (store) => ({
      batches: async (query) => {
        const page = await store.batches(query)
        return {
          ...page,
          batches: page.batches.map(({ costs, ...batch }) => ({
            ...batch,
            costs: { ...costs, units: 2 * (costs['units'] ?? 1) },
          })),
        }
      },
    }),
  ],

  'a pause of a batch that does not hold': [
    'a batch that is paused or cancelled starts nothing',
    (store) => ({
      controlBatch: async (request) => {
        const answer = await store.controlBatch(request)
        if (request.as === 'pause') await store.controlBatch({ ...request, as: 'resume' })
        return answer
      },
    }),
  ],

  'a completion that is never enqueued': [
    completion,
    (store) => ({ openBatch: (settings) => store.openBatch({ ...settings, onComplete: null }) }),
  ],

  'a completion that is enqueued twice': [
    completion,
    (store) => ({
      find: async (query) => {
        const page = await store.find(query)
        const again = page.jobs.filter(({ queue }) => queue === 'completions')
        return { ...page, jobs: [...page.jobs, ...again.map((job) => ({ ...job, id: crypto.randomUUID() }))] }
      },
    }),
  ],

  'a limit key that admits no more jobs': [
    'lost jobs come back',
    (store) =>
      defining(store, ({ keyLimit, ...rest }) => ({ ...rest, keyLimit: keyLimit && { ...keyLimit, rate: never } })),
  ],
}

const never = { count: 1, windowMs: 3_600_000 }

function defining(store: Store, limitsOf: (limits: LimitSettings) => LimitSettings): Partial<Store> {
  return {
    define: (queues) =>
      store.define(queues.map(({ limits, ...rest }) => ({ ...rest, limits: limits && limitsOf(limits) }))),
  }
}
