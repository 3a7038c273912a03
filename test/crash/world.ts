// What the processes of a crash series share: the queues, the names that several of them fight over, and what each of
// them works with.

import { defineQueue } from '../../src/definition.ts'
import type { Effects } from '../../src/effects.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Entry, Journal } from './journal.ts'
import type { Random } from './random.ts'

export interface World {
  readonly holdfast: Holdfast
  readonly journal: Journal
  readonly random: Random
  /** Names this process among all of its series. */
  readonly life: string
  readonly now: () => number
  /** How long a claim waits for jobs; 20 ms unless given. */
  readonly waitMs?: number
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

export const queues = [work, after, deaths, litter] as const

/** A queue that only this process pauses and resumes. */
export function valve(life: string) {
  return defineQueue(`valve-${life}`, { attempts, backoff, retain: forEver })
}

/** A job that lives as long as the series, so that no other may have its id. */
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

/** A table of the application, which would take a tag twice. */
export const table = 'create table effect (tag text not null)'

/** Effects that name the settlement they come with: a follow-up, a kv entry and, where possible, a row. */
export function effectsOf(
  { holdfast }: World,
  { tag, deletes = false, doomed = false }: { tag: string; deletes?: boolean; doomed?: boolean },
): Effects {
  return {
    enqueue: [
      { queue: after, payload: { label: tag, kind: 'after' } },
      ...(doomed ? [{ queue: work, payload: { label: `doomed ${tag}`, kind: 'plain' }, id: anchor.id as string }] : []),
    ],
    put: [{ key: effectKey(tag), value: tag }],
    delete: deletes ? [beforeKey(tag)] : [],
    // Written out, because stores write parameters in different ways; tags are letters, digits and dashes.
    sql: holdfast.capabilities.sqlEffects ? [{ text: `insert into effect (tag) values ('${tag}')` }] : [],
  }
}

export const effectKey = (tag: string) => `effect ${tag}`
export const beforeKey = (tag: string) => `before ${tag}`
