// The judge of a crash series: each promise with what speaks against it.

import { judgeCounts, judgeEnd } from './judge/counts.ts'
import { judgeDeaths, judgeEffects } from './judge/effects.ts'
import { judgeEnqueues } from './judge/enqueues.ts'
import { Evidence, type Findings } from './judge/evidence.ts'
import { judgeAttempts, judgeFences, judgeHolders } from './judge/fences.ts'
import { judgeKeys } from './judge/keys.ts'
import { judgeCounters, judgeLastWrites, judgePauses } from './judge/writes.ts'

export type { Findings }

const promises = {
  'every answered enqueue is accounted for once, every other at most once': judgeEnqueues,
  'no fence is honoured twice, and history tells what was answered': judgeFences,
  'a job has one holder at a time': judgeHolders,
  'attempts add up and stay below the cap': judgeAttempts,
  'effects are there all or not at all': judgeEffects,
  'every death is told of once': judgeDeaths,
  'counts equal a recount': judgeCounts,
  'a dedup key has one holder, an idempotency key one job': judgeKeys,
  'kv counters equal the increments': judgeCounters,
  'what was written last stands': judgeLastWrites,
  'a paused queue hands out nothing': judgePauses,
  'nothing stays stuck': judgeEnd,
} as const

export type Promised = keyof typeof promises

/** What speaks against each promise; an empty list where it was kept. */
export function judge(findings: Findings): Map<Promised, string[]> {
  const evidence = new Evidence(findings)
  return new Map(
    Object.entries(promises).map(([name, faultsIn]) => [name as Promised, [...new Set(faultsIn(evidence))]]),
  )
}
