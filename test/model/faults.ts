// Stores with one known fault each: a correct store behind a wrapper that answers wrongly in one place. The model must catch
// every one of them.

import { type BatchRecord, type BatchSettings, completionJob } from '../../src/job/batch.ts'
import type { EndNotice } from '../../src/job/end-notice.ts'
import type { Limit, LimitSettings, NewJob } from '../../src/job/record.ts'
import type { Settlement } from '../../src/job/transition.ts'
import { newId } from '../../src/runtime/id.ts'
import type { ClaimedJob, FinishedBatch, LeaseRef, SettleAnswer, SettleRequest, Store } from '../../src/store/store.ts'
import { wholePage } from '../conformance/expect.ts'

export type Break = (store: Store) => Partial<Store>

export const faults: Readonly<Record<string, Break>> = {
  'a settle that ignores the fence': (store) => {
    const { note, current } = rememberClaims()
    return {
      claim: async (request) => note(await store.claim(request)),
      settle: (requests) => store.settle(requests.map((request) => ({ ...request, ...current(request) }))),
    }
  },

  'a renew that ignores the fence': (store) => {
    const { note, current } = rememberClaims()
    return {
      claim: async (request) => note(await store.claim(request)),
      renew: (requests) => store.renew(requests.map((request) => ({ ...request, ...current(request) }))),
    }
  },

  'a renew that extends the other jobs of the claim': (store) => {
    const claims = new Map<string, readonly ClaimedJob[]>()
    return {
      claim: async (request) => {
        const claimed = await store.claim(request)
        for (const job of claimed) claims.set(job.fence, claimed)
        return claimed
      },
      renew: async (requests) => {
        const others = requests.flatMap(({ fence, leaseMs }) =>
          (claims.get(fence) ?? [])
            .filter((other) => other.fence !== fence)
            .map(({ id, fence }) => ({ id, fence, leaseMs })),
        )
        await store.renew(others)
        return store.renew(requests)
      },
    }
  },

  'a progress that ignores the fence': (store) => {
    const { note, current } = rememberClaims()
    return {
      claim: async (request) => note(await store.claim(request)),
      progress: (requests) => store.progress(requests.map((request) => ({ ...request, ...current(request) }))),
    }
  },

  'a change that leaves the limit key as it is': (store) => ({
    alter: (requests) =>
      store.alter(
        requests.map((request) => {
          if (request.as !== 'change') return request
          const { limitKey: _, ...rest } = request
          return rest
        }),
      ),
  }),

  'a requeue that forgets the name of its caller': (store) => ({ requeue: (ids) => store.requeue(ids) }),

  'a renew that hides a requested cancel': (store) => ({
    renew: async (requests) => {
      const answers = await store.renew(requests)
      return answers.map((answer) =>
        typeof answer === 'object' && 'expiresAt' in answer ? { ...answer, cancelRequested: false } : answer,
      )
    },
  }),

  'a sweep that forgets the attempt cap': (store) => ({
    sweep: async (request) => {
      const before = await deadIds(store)
      const report = await store.sweep(request)
      await store.requeue((await deadIds(store)).filter((id) => !before.includes(id)))
      return report
    },
  }),

  'a sweep that promotes nothing while it rescues': (store) => ({
    sweep: async (request) => {
      const report = await store.sweep(request)
      return report.rescued > 0 ? { ...report, promoted: 0 } : report
    },
  }),

  'a count that is one too high': (store) => ({
    stats: async () => {
      const stats = await store.stats()
      return stats.map((each) =>
        each.counts.dead > 1 ? { ...each, counts: { ...each.counts, dead: each.counts.dead + 1 } } : each,
      )
    },
  }),

  'a claim in reverse order': (store) => ({
    claim: async (request) => (await store.claim(request)).toReversed(),
  }),

  'a claim that returns the same jobs to two callers': (store) => {
    let inFlight: Promise<ClaimedJob[]> | null = null
    return {
      claim: (request) => {
        inFlight ??= store.claim(request).finally(() => {
          inFlight = null
        })
        return inFlight
      },
    }
  },

  'a claim of paused queues': (store) => ({
    pause: async (queue, paused) => {
      if (!paused) await store.pause(queue, false)
    },
  }),

  'a dedup key that is never released': (store) => {
    const holders = new Map<string, string>()
    return {
      enqueue: async (requests) => {
        const answers = await store.enqueue(requests)
        return answers.map((answer, i) => {
          const job = requests[i]?.jobs[0]
          if (!Array.isArray(answer) || answer.length !== 1 || !job?.dedup) return answer
          const key = `${job.queue} ${job.dedup.key}`
          const holder = holders.get(key)
          holders.set(key, holder ?? answer[0].id)
          return holder === undefined ? answer : [{ ...answer[0], id: holder, status: 'duplicate' }]
        })
      },
    }
  },

  'an enqueue of many jobs that loses the last': (store) => ({
    enqueue: async (requests) => {
      const kept = requests.map(({ jobs }) => ({ jobs: jobs.length > 3 ? jobs.slice(0, -1) : jobs }))
      const answers = await store.enqueue(kept)
      return answers.map((answer, i) => {
        const lost = requests[i]?.jobs[3]
        return Array.isArray(answer) && lost ? [...answer, { id: lost.id, status: 'created' }] : answer
      })
    },
  }),

  'a release that costs an attempt': (store) => ({
    settle: (requests) =>
      store.settle(
        requests.map((request) =>
          request.settlement.as === 'release'
            ? { ...request, settlement: { as: 'retry', error: { message: '' }, delayMs: 0, ending: 'failed' } }
            : request,
        ),
      ),
  }),

  'a failed settlement that leaves its puts behind': (store) => ({
    settle: async (requests) => {
      const answers = await store.settle(requests)
      for (const [i, { settlement }] of requests.entries()) {
        const answer = answers[i]
        if (typeof answer !== 'object' || !('failed' in answer) || !('effects' in settlement)) continue
        await store.kvWrite((settlement.effects?.put ?? []).map((put) => ({ as: 'put', ...put })))
      }
      return answers
    },
  }),

  'a cancel that drops its effects': (store) => ({
    cancel: (requests) => store.cancel(requests.map(({ id }) => ({ id, effects: null }))),
  }),

  'a history that loses the newest attempt': (store) => ({
    find: async (query) => {
      const page = await store.find(query)
      return { ...page, jobs: page.jobs.map(({ history = [], ...job }) => ({ ...job, history: history.slice(0, 2) })) }
    },
  }),

  'a dry run that is not dry': (store) => ({
    changeAll: (request) => store.changeAll({ ...request, dryRun: false }),
  }),

  'a change of many jobs that ignores a condition': (store) => ({
    changeAll: ({ filter: { error: _, ...filter }, ...request }) => store.changeAll({ ...request, filter }),
  }),

  'a cancel of many jobs that leaves running jobs alone': (store) => ({
    changeAll: ({ filter, ...request }) => {
      const states = filter.states?.filter((state) => request.change.as !== 'cancel' || state !== 'running') ?? []
      return store.changeAll({ ...request, filter: { ...filter, states } })
    },
  }),

  'an advance that moves the cursor and loses its jobs': (store) => ({
    advance: async (request) => {
      const answer = await store.advance({ ...request, jobs: [] })
      if (answer === 'stale' || answer === 'busy' || 'refused' in answer) return answer
      return { ...answer, enqueued: request.jobs.map(({ id }) => ({ id, status: 'created' })) }
    },
  }),

  'an advance that ignores the expected version': (store) => ({
    advance: async (request) => {
      const current = await store.kvGet(request.key)
      return store.advance({ ...request, version: current?.version ?? null })
    },
  }),

  'an advance that enqueues although it is stale': (store) => ({
    advance: async (request) => {
      const answer = await store.advance(request)
      if (answer === 'stale') await store.enqueue([{ jobs: request.jobs }])
      return answer
    },
  }),

  'an advance that is refused and moves the cursor all the same': (store) => ({
    advance: async ({ jobs, ...move }) => {
      const answer = await store.advance({ jobs, ...move })
      if (answer !== 'stale' && answer !== 'busy' && 'refused' in answer)
        await store.kvWrite([{ as: 'compareAndSet', ...move, ttlMs: null }])
      return answer
    },
  }),

  'a store that forgets the limit of a queue': (store) => ({
    define: defining(store, (limits) => ({ ...limits, limit: null })),
  }),

  'a store that forgets the limit of a key': (store) => ({
    define: defining(store, (limits) => ({ ...limits, keyLimit: null })),
  }),

  'a limit that admits one job too many': (store) => ({
    define: defining(store, ({ keyLimit, ...rest }) => ({
      ...rest,
      keyLimit: keyLimit && { ...keyLimit, concurrency: (keyLimit.concurrency ?? 0) + 1 },
    })),
  }),

  'a limit key that admits held jobs in reverse order': (store) => ({
    enqueue: (requests) =>
      store.enqueue(
        requests.map(({ jobs }) => ({
          jobs: jobs.some(({ limitKey }) => limitKey !== null) ? jobs.toReversed() : jobs,
        })),
      ),
  }),

  'a held job that is shown as ready': (store) => ({
    find: async (query) => {
      const page = await store.find(query)
      return { ...page, jobs: page.jobs.map((job) => (job.state === 'held' ? { ...job, state: 'ready' } : job)) }
    },
  }),

  'a rate of a queue that forgets its starts': (store) => ({
    define: defining(store, ({ limit, ...rest }) => ({ ...rest, limit: withoutRate(limit) })),
  }),

  'a rate of a key that forgets its starts': (store) => ({
    define: defining(store, ({ keyLimit, ...rest }) => ({ ...rest, keyLimit: withoutRate(keyLimit) })),
  }),

  'a completion that is enqueued twice': (store) => {
    const finished: FinishedBatch[] = []
    store.subscribe({ onFinished: ({ completion: _, ...each }) => finished.push(each) })
    return {
      settle: async (requests) => {
        const answers = await store.settle(requests)
        for (const { name, ...completion } of finished.splice(0)) {
          const target = (await store.batch({ id: completion.batchId }))?.onComplete
          if (target) await store.enqueue([{ jobs: [completionJob(target, completion, newId())] }])
        }
        return answers
      },
    }
  },

  'a batch that is finished while an item runs': (store) => seenThrough(store, hasFinishedEarly),

  'a pause that lets items start': (store) => ({
    claim: async (request) => {
      const { batches } = await store.batches({ state: 'paused', limit: 100, after: null })
      const controlAll = (as: 'pause' | 'resume') =>
        Promise.all(
          batches.map(({ id, pausedBy }) => store.controlBatch({ batch: id, as, by: pausedBy, reason: null })),
        )
      await controlAll('resume')
      const claimed = await store.claim(request)
      await controlAll('pause')
      return claimed
    },
  }),

  'a batch that runs more items than it may': (store) => {
    const real = new Map<string, BatchSettings>()
    const openBatch: Store['openBatch'] = async (settings) => {
      const opened = await store.openBatch({ ...settings, concurrency: null })
      if ('refused' in opened) return opened
      if (opened.created) real.set(settings.id, settings)
      return { ...opened, batch: { ...opened.batch, ...real.get(opened.batch.id) } }
    }
    return { ...seenThrough(store, (batch) => ({ ...batch, ...real.get(batch.id) })), openBatch }
  },

  'counts that forget the dead': (store) => seenThrough(store, (batch) => ({ ...batch, dead: 0 })),

  'counts that lose pruned items': (store) => ({
    sweep: async (request) => {
      const done = (await wholePage(store, { filter: { states: ['done'] } })).jobs
      const report = await store.sweep(request)
      for (const { id } of done.filter(({ batch }) => batch !== null)) await store.alter([{ as: 'delete', id }])
      return report
    },
  }),

  'costs that forget the attempts that failed': (store) => ({
    settle: (requests) =>
      store.settle(
        requests.map(({ settlement, ...rest }) => ({
          ...rest,
          settlement: settlement.as === 'retry' ? { ...settlement, costs: null } : settlement,
        })),
      ),
  }),

  'a retryFailed that forgets one item': (store) => ({
    controlBatch: async (request) => {
      if (request.as !== 'retryFailed') return store.controlBatch(request)
      const dead = { state: 'dead', outcome: null, warning: null, limit: 1_000, after: null } as const
      const [, ...rest] = (await store.items({ batch: request.batch, ...dead })).jobs
      if (rest.length > 0) await store.requeue(rest.map(({ id }) => id))
      const batch = await store.batch({ id: request.batch })
      return batch?.state === 'open' || rest.length > 0
        ? (batch as BatchRecord)
        : store.controlBatch({ ...request, as: 'retryFailed' })
    },
  }),

  'a retryFailed that enqueues cancelled items again': (store) => ({
    controlBatch: async (request) => {
      const answer = await store.controlBatch(request)
      if (request.as !== 'retryFailed' || 'refused' in answer) return answer
      const cancelled = { state: 'cancelled', outcome: null, warning: null, limit: 1_000, after: null } as const
      const { jobs } = await store.items({ batch: request.batch, ...cancelled })
      for (const { queue, payload } of jobs) await store.enqueue([{ jobs: [plainJob(queue, payload)] }])
      return answer
    },
  }),

  'a retryFailed that begins no round': (store) => seenThrough(store, (batch) => ({ ...batch, round: 1 })),

  'a repeated submission that adds all items again': (store) => ({
    addItems: ({ jobs, batch }) => store.addItems({ at: null, jobs, batch }),
  }),

  'a batch that is never given up': (store) => {
    const shares = new Map<string, number | null>()
    const openBatch: Store['openBatch'] = async (settings) => {
      const opened = await store.openBatch({ ...settings, failShare: null })
      if ('refused' in opened) return opened
      if (opened.created) shares.set(settings.id, settings.failShare)
      return { ...opened, batch: { ...opened.batch, failShare: shares.get(opened.batch.id) ?? null } }
    }
    return { ...seenThrough(store, (batch) => ({ ...batch, failShare: shares.get(batch.id) ?? null })), openBatch }
  },

  'a deletion that leaves the items': (store) => ({
    controlBatch: async (request) => {
      if (request.as !== 'delete') return store.controlBatch(request)
      const ended = { state: 'done', outcome: null, warning: null, limit: 1_000, after: null } as const
      const { jobs } = await store.items({ batch: request.batch, ...ended })
      const answer = await store.controlBatch(request)
      for (const { queue, payload } of jobs) await store.enqueue([{ jobs: [plainJob(queue, payload)] }])
      return answer
    },
  }),

  'an accept that leaves its entry behind': (store) => ({
    accept: async (request) => {
      const entry = await store.kvGet(request.key)
      const answer = await store.accept(request)
      if (entry && answer !== 'stale') await store.kvWrite([{ as: 'put', key: request.key, ...entry, ttlMs: null }])
      return answer
    },
  }),

  'a checkpoint that ignores the fence': (store) => {
    const { note, current } = rememberClaims()
    return {
      claim: async (request) => note(await store.claim(request)),
      checkpoint: (requests, token) =>
        store.checkpoint(
          requests.map((request) => ({ ...request, ...current(request) })),
          token,
        ),
    }
  },

  'a refused checkpoint that uses up its signals all the same': (store) => ({
    checkpoint: async (requests, token) => {
      const answers = await Promise.all(await store.checkpoint(requests, token))
      for (const [i, request] of requests.entries()) {
        const answer = answers[i]
        if (typeof answer !== 'object' || !('failed' in answer)) continue
        for (const no of request.journal.consume ?? [])
          await store.checkpoint([{ ...request, ...onlyJournal, journal: { records: [], consume: [no] } }])
      }
      return answers
    },
  }),

  'a park that forgets a wake-up': (store) => ({
    settle: async (requests, token) => {
      const answers = await Promise.all(await store.settle(requests, token))
      return Promise.all(answers.map((answer, i) => parkedAgain(store, requests[i] as SettleRequest, answer)))
    },
  }),

  'a checkpoint that always starts over': (store) => ({
    checkpoint: (requests, token) =>
      store.checkpoint(
        requests.map((request) => ({ ...request, startsOver: true })),
        token,
      ),
  }),

  'a mailbox that misses the end of a child whose lease has expired': (store) => {
    const expired = new Set<string>()
    return {
      sweep: async (request) => {
        const report = await store.sweep(request)
        for (const { id, state } of report.expired) if (state === 'dead') expired.add(id)
        return report
      },
      messages: async (query) => (await store.messages(query)).filter(({ child }) => !expired.has(child ?? '')),
    }
  },

  'a notice of an end that is made twice': (store) => ({
    settle: async (requests, token) => {
      const answers = await Promise.all(await store.settle(requests, token))
      const [{ definition } = { definition: undefined }] = await store.definitions(['a'])
      const onEnd = definition?.onEnd
      if (onEnd === undefined) return answers
      const { jobs } = await wholePage(store, { filter: { queues: [onEnd] } })
      const ended = new Set(requests.filter((_, i) => isDone(answers[i])).map(({ id }) => id))
      for (const { payload } of jobs) {
        const notice = JSON.parse(payload) as Partial<EndNotice> | null
        if (notice?.state === 'done' && ended.has(notice.id ?? ''))
          await store.enqueue([{ jobs: [plainJob(onEnd, payload)] }])
      }
      return answers
    },
  }),

  'a signal to a key that wakes no job': (store) => ({
    settle: (requests, token) =>
      store.settle(
        requests.map(({ settlement, ...rest }) => ({ ...rest, settlement: withoutAwaits(settlement) })),
        token,
      ),
  }),

  'a requeue that loses the journal': (store) => {
    const requeued = new Set<string>()
    return {
      requeue: async (ids, by) => {
        for (const id of ids) requeued.add(id)
        return store.requeue(ids, by)
      },
      claim: async (request) =>
        (await store.claim(request)).map(({ journal, ...job }) =>
          journal === undefined || requeued.has(job.id) ? job : { ...job, journal },
        ),
    }
  },

  'a key-value entry that outlives its ttl': (store) => ({
    kvWrite: (writes) => store.kvWrite(writes.map((write) => ('ttlMs' in write ? { ...write, ttlMs: null } : write))),
  }),
}

export function withFault(store: Store, fault: Break): Store {
  const verbs = fault(store)
  return new Proxy(store, {
    get(target, name) {
      const value: unknown = Reflect.get(verbs, name) ?? Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

function withoutRate(limit: Limit | null): Limit | null {
  return limit?.concurrency == null ? null : { concurrency: limit.concurrency, rate: null }
}

/** The store, with every batch changed by `show` before it is returned. */
function seenThrough(store: Store, show: (batch: BatchRecord) => BatchRecord): Partial<Store> {
  return {
    batch: async (name) => {
      const batch = await store.batch(name)
      return batch && show(batch)
    },
    batches: async (query) => {
      const page = await store.batches(query)
      return { ...page, batches: page.batches.map(show) }
    },
    controlBatch: async (request) => {
      const answer = await store.controlBatch(request)
      return 'refused' in answer ? answer : show(answer)
    },
  }
}

function hasFinishedEarly(batch: BatchRecord): BatchRecord {
  return batch.state === 'running' ? { ...batch, state: 'done' } : batch
}

function defining(store: Store, limitsOf: (limits: LimitSettings) => LimitSettings): Store['define'] {
  return (queues) =>
    store.define(queues.map(({ limits, ...rest }) => ({ ...rest, limits: limits && limitsOf(limits) })))
}

function plainJob(queue: string, payload: string): NewJob {
  return {
    ...{ id: newId(), idGiven: false, queue, payload, headers: null, priority: 5, maxAttempts: 1, timeoutMs: null },
    ...{ delayMs: 0, runAt: null, startBefore: null, dedup: null, idempotency: null, limitKey: null },
  }
}

const onlyJournal = { effects: null, startsOver: false }

const yearMs = 365 * 86_400_000

/** A park that a message has ended at once waits all the same. */
async function parkedAgain(store: Store, request: SettleRequest, answer: SettleAnswer): Promise<SettleAnswer> {
  const { id, settlement } = request
  const isPark = settlement.as === 'snooze' && settlement.parks === true
  if (!isPark || typeof answer !== 'object' || !('enqueued' in answer) || answer.state !== 'ready') return answer
  const runAt = (await store.time()) + yearMs
  await store.alter([{ as: 'reschedule', id, runAt, by: null }])
  return { ...answer, state: 'scheduled', runAt }
}

function isDone(answer: SettleAnswer | undefined): boolean {
  return typeof answer === 'object' && 'state' in answer && answer.state === 'done'
}

function withoutAwaits(settlement: Settlement): Settlement {
  if (settlement.journal?.awaits === undefined) return settlement
  const { awaits, ...journal } = settlement.journal
  return { ...settlement, journal: { ...journal, awaits: [] } }
}

function rememberClaims() {
  const fences = new Map<string, string>()
  return {
    note(claimed: ClaimedJob[]): ClaimedJob[] {
      for (const { id, fence } of claimed) fences.set(id, fence)
      return claimed
    },
    current: ({ id, fence }: LeaseRef): LeaseRef => ({ id, fence: fences.get(id) ?? fence }),
  }
}

async function deadIds(store: Store): Promise<string[]> {
  const { jobs } = await wholePage(store, { filter: { states: ['dead'] } })
  return jobs.filter(({ error }) => error?.name === 'LeaseExpired').map(({ id }) => id)
}
