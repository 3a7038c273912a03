// Looks for a seed whose run breaks a promise, and for the shortest run that shows it.

import { type Plan, planOf } from './plan.ts'
import { shrink } from './shrink.ts'
import { type Flaw, type Outcome, simulate } from './simulate.ts'

export interface Finding {
  readonly seed: number
  readonly outcome: Outcome
  /** What is left of the plan when all is left out that does not matter, and how that went. */
  readonly shortest: Outcome
}

export interface SearchOptions {
  readonly seed: number
  /** Whether to go on, after each run. */
  readonly goesOn: (runs: number) => boolean
  readonly flaw?: Flaw
  readonly shrinks?: boolean
}

/** The first seed, from the given one on, that breaks a promise; null where none did. */
export async function search({ seed: first, goesOn, flaw, shrinks = true }: SearchOptions): Promise<Finding | null> {
  for (let runs = 0; goesOn(runs); runs++) {
    const seed = first + runs
    const outcome = await simulate(planOf(seed), flaw)
    if (outcome.violations.length === 0) continue
    return { seed, outcome, shortest: shrinks ? await shortestOf(outcome, flaw) : outcome }
  }
  return null
}

async function shortestOf({ plan, violations }: Outcome, flaw: Flaw | undefined): Promise<Outcome> {
  const broken = violations[0]?.promise
  const fails = async (fewer: Plan) =>
    (await simulate(fewer, flaw)).violations.some(({ promise }) => promise === broken)
  return simulate(await shrink(plan, fails), flaw)
}

/** Everything needed to see what happened, and to see it again. */
export function report({ seed, outcome, shortest }: Finding): string {
  const { plan, trace } = shortest
  const broken = outcome.violations.slice(0, shownMax).map(({ promise, what }) => `  broken: ${promise}\n    ${what}`)
  const left = [...plan.faults, ...plan.deeds].map((part) => `  ${JSON.stringify(part)}`)
  return [
    `Seed ${seed} breaks a promise. Replay it with`,
    `  npm run simulate -- --seed ${seed} --trace`,
    ...broken,
    `What is left of it when all is left out that does not matter (${plan.places} processes, calm at ${plan.calmAt} ms):`,
    ...left,
    'What happens then:',
    ...tail(trace, linesMax),
  ].join('\n')
}

const shownMax = 5
const linesMax = 120

/** The end of it, as far as the verdict. */
export function tail(lines: readonly string[], max: number): string[] {
  if (lines.length <= max) return [...lines]
  return [`  … ${lines.length - max} lines before`, ...lines.slice(-max)]
}
