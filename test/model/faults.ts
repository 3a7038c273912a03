// Stores with a known fault, one each: a sound store behind a wrapper that lies in one place. A judge that lets one of them
// pass is no judge.

import type { ClaimedJob, HoldName, Store } from '../../src/store/store.ts'

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

  'a renew that extends the mates of the claim': (store) => {
    const mates = new Map<string, readonly ClaimedJob[]>()
    return {
      claim: async (request) => {
        const claimed = await store.claim(request)
        for (const job of claimed) mates.set(job.fence, claimed)
        return claimed
      },
      renew: async (requests) => {
        const others = requests.flatMap(({ fence, leaseMs }) =>
          (mates.get(fence) ?? [])
            .filter((mate) => mate.fence !== fence)
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

  'a claim that hands the same jobs to two who ask at once': (store) => {
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

  'a dedup slot that is never freed': (store) => {
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

  'an enqueue that loses the last of a batch': (store) => ({
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
    jobs: async (query) => {
      const page = await store.jobs(query)
      return { ...page, jobs: page.jobs.map((job) => ({ ...job, history: job.history.slice(0, 2) })) }
    },
  }),

  'a dry run that is not dry': (store) => ({
    requeueAll: ({ filter }) => store.requeueAll({ filter, dryRun: false }),
  }),

  'an advance that moves the cursor and loses its jobs': (store) => ({
    advance: async (request) => {
      const answer = await store.advance({ ...request, jobs: [] })
      if (answer === 'stale' || 'refused' in answer) return answer
      return { ...answer, enqueued: request.jobs.map(({ id }) => ({ id, status: 'created' })) }
    },
  }),

  'an advance that lands whoever was first': (store) => ({
    advance: async (request) => {
      const standing = await store.kvGet(request.key)
      return store.advance({ ...request, version: standing?.version ?? null })
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
      if (answer !== 'stale' && 'refused' in answer)
        await store.kvWrite([{ as: 'compareAndSet', ...move, ttlMs: null }])
      return answer
    },
  }),

  'a key-value entry that outlives its time': (store) => ({
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

function rememberClaims() {
  const fences = new Map<string, string>()
  return {
    note(claimed: ClaimedJob[]): ClaimedJob[] {
      for (const { id, fence } of claimed) fences.set(id, fence)
      return claimed
    },
    current: ({ id, fence }: HoldName): HoldName => ({ id, fence: fences.get(id) ?? fence }),
  }
}

async function deadIds(store: Store): Promise<string[]> {
  const { jobs } = await store.jobs({ queue: null, state: 'dead', limit: 1_000, after: null })
  return jobs.filter(({ error }) => error?.name === 'LeaseExpired').map(({ id }) => id)
}
