// The judge: each promise of the design, how often it was put to the test, and what speaks against it.

import { judgeBatches, judgeCompletions, judgeSteering } from './judge/batches.ts'
import { judgeCounts, judgeHiding, judgeReturn } from './judge/counts.ts'
import { judgeDeaths, judgeEffects } from './judge/effects.ts'
import { judgeEnqueues } from './judge/enqueues.ts'
import { Evidence, type Findings } from './judge/evidence.ts'
import { judgeAttempts, judgeFences, judgeHolders } from './judge/fences.ts'
import { judgeKeys } from './judge/keys.ts'
import { judgeConcurrency, judgeRates } from './judge/limits.ts'
import { judgeOrder } from './judge/order.ts'
import { judgeCalls, judgeOrphans, judgeSlots, judgeWatch } from './judge/outside.ts'
import { type Ruling, together } from './judge/ruling.ts'
import { judgeDrains, judgeInput, judgePoison, judgeResults } from './judge/workers.ts'
import { judgeCounters, judgeLastWrites, judgePauses } from './judge/writes.ts'

export type { Findings, Ruling }

const promises = {
  'every answered enqueue is there once, every other at most once, one rolled back never': judgeEnqueues,
  'a job has one holder at a time, and a fence one claim': judgeHolders,
  'a settlement lands with its fence, once, as it was answered': judgeFences,
  'effects are there all or not at all': judgeEffects,
  'attempts add up and stay below the cap': judgeAttempts,
  'a job that kills every process ends dead': judgePoison,
  'every death is told of once': judgeDeaths,
  'what fell off comes back': judgeReturn,
  'nothing that is ready hides': judgeHiding,
  'a dedup key has one holder, an idempotency key one job': judgeKeys,
  'a paused queue hands out nothing': judgePauses,
  'jobs are claimed in the order in which they became ready': judgeOrder,
  'counts equal a recount': judgeCounts,
  'of a queue, a key and a batch no more run at once than they may': judgeConcurrency,
  'no more start within a while than may': judgeRates,
  'a batch has each of its items once, and counts what became of them': judgeBatches,
  'a batch that is paused or cancelled starts nothing': judgeSteering,
  'the completion of a batch is told once a round': judgeCompletions,
  'who is asked to end has settled everything': judgeDrains,
  'a slot of a schedule fires once': judgeSlots,
  'bad input is a typed error or one dead job': judgeInput,
  'kv counters equal the increments': judgeCounters,
  'what was written last stands': judgeLastWrites,
  'results are what became of the job': judgeResults,
  'who watches is told of every change': judgeWatch,
  'what is announced is delivered': judgeCalls,
  'rows that were left behind are revived': judgeOrphans,
} as const

export type Promised = keyof typeof promises

export function judge(findings: Findings): Map<Promised, Ruling> {
  const evidence = new Evidence(findings)
  return new Map(Object.entries(promises).map(([name, rulingOn]) => [name as Promised, together(rulingOn(evidence))]))
}
