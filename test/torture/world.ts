// What the processes of a round share: the queues, the keys and ids that they compete for, and the context of each process.

import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { defineWebhooks } from '../../src/webhook/webhooks.ts'
import type { Application } from './application.ts'
import type { Entry, Journal, TaskBehaviour } from './journal.ts'
import type { Random } from './random.ts'

export interface World {
  readonly holdfast: Holdfast
  readonly journal: Journal
  readonly random: Random
  /** Unique among the processes of a round. */
  readonly processName: string
  readonly now: () => number
  /** How long a claim waits for jobs; 20 ms unless given. */
  readonly waitMs?: number
}

/** A process that also uses the database of the application. */
export interface AppWorld extends World {
  readonly application: Application
}

const forever = { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY }
const backoff = { base: 20, factor: 1 }

export const attempts = 4

/** The longest lease, delay and backoff, so the longest time that a drain waits for one job. */
export const leaseMaxMs = 500

export const work = defineQueue('work', { attempts, backoff, retain: forever, onDead: { queue: 'deaths' } })
/** The queue of follow-ups. */
export const after = defineQueue('after', { attempts: 1_000, backoff, retain: forever })
export const deaths = defineQueue('deaths', { retain: forever, backoff })
/** Retains nothing, and is purged now and then. */
export const purgeable = defineQueue('purgeable', { attempts, backoff, retain: { done: 0, dead: 0 } })

export const taskOptions = {
  ...{ attempts, backoff, retain: forever },
  ...{ lease: leaseMaxMs, timeout: 2_500, onDead: { queue: 'deaths' } },
}
export const tasks = defineQueue<Task>('tasks', taskOptions)
/** A job for every slot of a schedule. */
export const ticks = defineQueue('ticks', { attempts: 1_000, backoff, retain: forever })
/** A job for every row that the reaper finds. */
export const orphans = defineQueue<Labelled>('orphans', { attempts: 1_000, backoff, retain: forever })
/** Webhooks that tasks enqueue. */
export const calls = defineWebhooks({
  ...{ secret: 'a secret of the torture', allowPrivate: true, queue: 'calls', timeout: '2s' },
  ...{ attempts: 1_000, backoff, retain: forever, perHost: 50 },
})

const tenant = ({ tenant }: Labelled) => tenant
/** A limit on jobs at once, in all processes together. */
export const narrow = defineQueue<Labelled>('narrow', { attempts, backoff, retain: forever, limit: { concurrency: 3 } })
/** A limit on jobs at once for each tenant. */
export const keyed = defineQueue<Labelled>('keyed', {
  ...{ attempts, backoff, retain: forever },
  limit: { key: tenant, concurrency: 2 },
})
/** A rate of starts, for the queue and for each tenant. */
export const paced = defineQueue<Labelled>('paced', {
  ...{ attempts, backoff, retain: forever },
  limit: [{ rate: { count: 12, per: 300 } }, { key: tenant, concurrency: 3, rate: { count: 4, per: 200 } }],
})
/** Items of batches that are settled by hand. */
export const pieces = defineQueue<Labelled>('pieces', { attempts, backoff, retain: forever })
/** The queue of completions of batches. */
export const completions = defineQueue('completions', { attempts: 1_000, backoff, retain: forever })
export const tenants = ['ann', 'bob', 'cleo']

/** Settled by hand. */
export const byHand = [work, after, deaths, purgeable] as const
/** Also settled by hand: queues with a limit, and queues of items and completions of batches. */
export const limited = [narrow, keyed, paced, pieces, completions] as const
/** Settled by workers and their handlers. */
export const byHandlers = [tasks, ticks, orphans, calls.queue] as const
export const queues = [...byHand, ...limited, ...byHandlers] as const

export interface Labelled {
  readonly label: string
  readonly kind: string
  /** Decides its limit key. */
  readonly tenant?: string
}

export interface Task extends Labelled {
  readonly behaviour: TaskBehaviour
}

export function capOf(queue: string): number {
  if ([after, ticks, orphans, calls.queue, completions].some(({ name }) => name === queue)) return 1_000
  return queue === deaths.name || queue === 'reserved' ? 5 : attempts
}

export const tick = { name: 'tick', cron: '* * * * * *', queue: ticks, missed: 'all' } as const
export const tickMs = 1_000

/** A queue that only this process pauses and resumes. */
export function ownQueue(processName: string) {
  return defineQueue(`own-${processName}`, { attempts, backoff, retain: forever })
}

/** A job that exists for the whole round. So another job with its id is refused. */
export const reservedJob: Entry = {
  label: 'reserved',
  kind: 'reserved',
  queue: 'reserved',
  attempts,
  priority: 5,
  id: 'ffffffff-ffff-4fff-bfff-ffffffffffff',
}

export const givenIds = Array.from({ length: 6 }, (_, n) => `eeeeeeee-eeee-4eee-beee-eeeeeeeeeee${n}`)
export const counters = ['counter 0', 'counter 1', 'counter 2']
export const windowMs = 40

/**
 * Tables of the application:
 * - `effect` accepts the same tag twice;
 * - `orphan` has the rows for the reaper;
 * - `child` accepts no row, but the database refuses it only at the commit.
 */
export const tables = [
  'create table effect (tag text not null)',
  'create table orphan (tag text primary key)',
  'create table parent (tag text primary key)',
  'create table child (tag text references parent deferrable initially deferred)',
]

/** Effects that carry the tag of their settlement: a follow-up, a key-value entry and, where the store can, a row. */
export function effectsOf(
  { holdfast, random }: World,
  { tag, deletes = false, hasBadEffect = false }: { tag: string; deletes?: boolean; hasBadEffect?: boolean },
): Effects {
  const { sqlEffects } = holdfast.capabilities
  const failsAtCommit = hasBadEffect && sqlEffects && random.chance(0.5)
  return {
    enqueue: [
      { queue: after, payload: { label: tag, kind: 'after' } },
      ...(hasBadEffect && !failsAtCommit
        ? [{ queue: work, payload: { label: `refused ${tag}`, kind: 'plain' }, id: reservedJob.id as string }]
        : []),
    ],
    put: [{ key: effectKey(tag), value: tag }],
    delete: deletes ? [beforeKey(tag)] : [],
    // Tags are written into the statement, because stores write parameters in different ways. They need no escaping.
    sql: [
      ...(sqlEffects ? [{ text: `insert into effect (tag) values ('${tag}')` }] : []),
      ...(failsAtCommit ? [{ text: `insert into child (tag) values ('${tag}')` }] : []),
    ],
  }
}

export const taskTag = (label: string) => `task-${label}`
export const effectKey = (tag: string) => `effect ${tag}`
export const beforeKey = (tag: string) => `before ${tag}`
