// The judge: for each promise of the design, how often it was checked, and every violation.

import { judgeBatches, judgeCompletions, judgeControls } from './judge/batches.ts'
import { judgeCounts, judgeHiding, judgeReturn } from './judge/counts.ts'
import { judgeDeaths, judgeEffects } from './judge/effects.ts'
import { judgeEnqueues } from './judge/enqueues.ts'
import { Evidence, type Findings } from './judge/evidence.ts'
import { judgeAttempts, judgeFences, judgeHolders } from './judge/fences.ts'
import { judgeKeys } from './judge/keys.ts'
import { judgeConcurrency, judgeRates } from './judge/limits.ts'
import { judgeOrder } from './judge/order.ts'
import { judgeCalls, judgeOrphans, judgeSlots, judgeWatch } from './judge/outside.ts'
import { combine, type Ruling } from './judge/ruling.ts'
import { judgeDrains, judgeInput, judgePoison, judgeResults } from './judge/workers.ts'
import { judgeCounters, judgeLastWrites, judgePauses } from './judge/writes.ts'

export type { Findings, Ruling }

const promises = {
  'every answered enqueue is stored once, every other at most once, one rolled back never': judgeEnqueues,
  'a job has one holder at a time, and a fence one claim': judgeHolders,
  'a settlement is applied with its fence, once, as it was answered': judgeFences,
  'effects are applied all or not at all': judgeEffects,
  'attempts add up and stay below the cap': judgeAttempts,
  'a job that kills every process ends dead': judgePoison,
  'every death enqueues one notice': judgeDeaths,
  'lost jobs come back': judgeReturn,
  'no ready job is hidden': judgeHiding,
  'a dedup key has one holder, an idempotency key one job': judgeKeys,
  'a claim gets nothing from a paused queue': judgePauses,
  'jobs are claimed in the order in which they became ready': judgeOrder,
  'counts equal a recount': judgeCounts,
  'of a queue, a key and a batch no more jobs run at once than allowed': judgeConcurrency,
  'no more jobs start within a time window than allowed': judgeRates,
  'a batch has each of its items once, and counts how they ended': judgeBatches,
  'a batch that is paused or cancelled starts nothing': judgeControls,
  'the completion of a batch is enqueued once a round': judgeCompletions,
  'a worker that is asked to end has settled everything': judgeDrains,
  'a slot of a schedule fires once': judgeSlots,
  'bad input is a typed error or one dead job': judgeInput,
  'kv counters equal the increments': judgeCounters,
  'the last write wins': judgeLastWrites,
  'a result equals what the job ended with': judgeResults,
  'a watcher gets every change': judgeWatch,
  'every webhook that was enqueued is delivered': judgeCalls,
  'every row that was left behind gets a job': judgeOrphans,
} as const

export type Promised = keyof typeof promises

export function judge(findings: Findings): Map<Promised, Ruling> {
  const evidence = new Evidence(findings)
  return new Map(Object.entries(promises).map(([name, rulingOn]) => [name as Promised, combine(rulingOn(evidence))]))
}
