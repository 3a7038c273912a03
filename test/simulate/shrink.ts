// Shortens a run that breaks a promise. Steps and faults are removed, larger parts first, as long as the same promise is still
// broken.

import { shorterThan } from '../model/shrink.ts'
import type { Deed, Fault, Plan } from './plan.ts'

/** Each try is a whole run; this many take some seconds. */
const triesMax = 400

export async function shrink(plan: Plan, fails: (plan: Plan) => Promise<boolean>): Promise<Plan> {
  let best: readonly (Deed | Fault)[] = [...plan.faults, ...plan.deeds]
  let tries = 0
  for (let isSmaller = true; isSmaller && tries < triesMax; ) {
    isSmaller = false
    for (const fewer of shorterThan(best)) {
      tries += 1
      if (tries >= triesMax) break
      if (!(await fails(toPlan(plan, fewer)))) continue
      best = fewer
      isSmaller = true
      break
    }
  }
  return toPlan(plan, best)
}

function toPlan(plan: Plan, parts: readonly (Deed | Fault)[]): Plan {
  return {
    ...plan,
    faults: parts.filter((part) => 'call' in part),
    deeds: parts.filter((part) => 'at' in part),
  }
}
