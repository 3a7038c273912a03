// What the processes of a round share: the queues, the names that several of them fight over, and what each of them works
// with.

import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { defineWebhooks } from '../../src/webhook/webhooks.ts'
import type { Application } from './application.ts'
import type { Deed, Entry, Journal } from './journal.ts'
import type { Random } from './random.ts'

export interface World {
  readonly holdfast: Holdfast
  readonly journal: Journal
  readonly random: Random
  /** Names this process among all of its round. */
  readonly life: string
  readonly now: () => number
  /** How long a claim waits for jobs; 20 ms unless given. */
  readonly waitMs?: number
}

/** Also has a database of its own, beside or around the queue's. */
export interface AppWorld extends World {
  readonly application: Application
}

const forEver = { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY }
const backoff = { base: 20, factor: 1 }

export const attempts = 4

/** The longest lease, delay and backoff: so long may a job keep who drains waiting. */
export const leaseMaxMs = 500

export const work = defineQueue('work', { attempts, backoff, retain: forEver, onDead: { queue: 'deaths' } })
/** Where effects put their follow-ups. */
export const after = defineQueue('after', { attempts: 1_000, backoff, retain: forEver })
export const deaths = defineQueue('deaths', { retain: forEver, backoff })
/** Keeps nothing, and is purged now and then. */
export const litter = defineQueue('litter', { attempts, backoff, retain: { done: 0, dead: 0 } })

export const taskOptions = {
  ...{ attempts, backoff, retain: forEver },
  ...{ lease: leaseMaxMs, timeout: 2_500, onDead: { queue: 'deaths' } },
}
export const tasks = defineQueue<Task>('tasks', taskOptions)
/** A job for every slot of a schedule. */
export const ticks = defineQueue('ticks', { attempts: 1_000, backoff, retain: forEver })
/** A job for every row that was left behind. */
export const orphans = defineQueue<Labelled>('orphans', { attempts: 1_000, backoff, retain: forEver })
/** What tasks announce, over HTTP. */
export const calls = defineWebhooks({
  ...{ secret: 'a secret of the torture', allowPrivate: true, queue: 'calls', timeout: '2s' },
  ...{ attempts: 1_000, backoff, retain: forEver, perHost: 50 },
})

const tenant = ({ tenant }: Labelled) => tenant
/** So many at once, in all processes together. */
export const narrow = defineQueue<Labelled>('narrow', { attempts, backoff, retain: forEver, limit: { concurrency: 3 } })
/** So many at once of each tenant. */
export const keyed = defineQueue<Labelled>('keyed', {
  ...{ attempts, backoff, retain: forEver },
  limit: { key: tenant, concurrency: 2 },
})
/** So many starts within any stretch of time, in all and of each tenant. */
export const paced = defineQueue<Labelled>('paced', {
  ...{ attempts, backoff, retain: forEver },
  limit: [{ rate: { count: 12, per: 300 } }, { key: tenant, concurrency: 3, rate: { count: 4, per: 200 } }],
})
/** Items of batches that are settled by hand. */
export const pieces = defineQueue<Labelled>('pieces', { attempts, backoff, retain: forEver })
/** Where the completion of batches is told. */
export const completions = defineQueue('completions', { attempts: 1_000, backoff, retain: forEver })
export const tenants = ['ann', 'bob', 'cleo']

/** Settled by hand. */
export const byHand = [work, after, deaths, litter] as const
/** Settled by hand as well, and limited, or items of what is. */
export const limited = [narrow, keyed, paced, pieces, completions] as const
/** Settled by workers and their handlers. */
export const byHandlers = [tasks, ticks, orphans, calls.queue] as const
export const queues = [...byHand, ...limited, ...byHandlers] as const

export interface Labelled {
  readonly label: string
  readonly kind: string
  /** What it shares a limit by. */
  readonly tenant?: string
}

export interface Task extends Labelled {
  readonly deed: Deed
}

export function capOf(queue: string): number {
  if ([after, ticks, orphans, calls.queue, completions].some(({ name }) => name === queue)) return 1_000
  return queue === deaths.name || queue === 'anchor' ? 5 : attempts
}

export const tick = { name: 'tick', cron: '* * * * * *', queue: ticks, missed: 'all' } as const
export const tickMs = 1_000

/** A queue that only this process pauses and resumes. */
export function valve(life: string) {
  return defineQueue(`valve-${life}`, { attempts, backoff, retain: forEver })
}

/** A job that lives as long as the round, so that no other may have its id. */
export const anchor: Entry = {
  label: 'anchor',
  kind: 'anchor',
  queue: 'anchor',
  attempts,
  priority: 5,
  id: 'ffffffff-ffff-4fff-bfff-ffffffffffff',
}

export const givenIds = Array.from({ length: 6 }, (_, n) => `eeeeeeee-eeee-4eee-beee-eeeeeeeeeee${n}`)
export const counters = ['counter 0', 'counter 1', 'counter 2']
export const windowMs = 40

/**
 * Tables of the application: one that would take a tag twice; one whose rows wait for a reaper; and one that takes no row at all,
 * which the database minds at the commit only.
 */
export const tables = [
  'create table effect (tag text not null)',
  'create table orphan (tag text primary key)',
  'create table parent (tag text primary key)',
  'create table child (tag text references parent deferrable initially deferred)',
]

/** Effects that name the settlement they come with: a follow-up, a kv entry and, where possible, a row. */
export function effectsOf(
  { holdfast, random }: World,
  { tag, deletes = false, doomed = false }: { tag: string; deletes?: boolean; doomed?: boolean },
): Effects {
  const { sqlEffects } = holdfast.capabilities
  const failsAtCommit = doomed && sqlEffects && random.chance(0.5)
  return {
    enqueue: [
      { queue: after, payload: { label: tag, kind: 'after' } },
      ...(doomed && !failsAtCommit
        ? [{ queue: work, payload: { label: `doomed ${tag}`, kind: 'plain' }, id: anchor.id as string }]
        : []),
    ],
    put: [{ key: effectKey(tag), value: tag }],
    delete: deletes ? [beforeKey(tag)] : [],
    // Written out, because stores write parameters in different ways; tags are letters, digits and dashes.
    sql: [
      ...(sqlEffects ? [{ text: `insert into effect (tag) values ('${tag}')` }] : []),
      ...(failsAtCommit ? [{ text: `insert into child (tag) values ('${tag}')` }] : []),
    ],
  }
}

export const taskTag = (label: string) => `task-${label}`
export const effectKey = (tag: string) => `effect ${tag}`
export const beforeKey = (tag: string) => `before ${tag}`
