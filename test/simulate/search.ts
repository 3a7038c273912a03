// Searches for a seed whose run breaks a promise, and for the shortest run that shows it.

import { type Plan, planOf } from './plan.ts'
import { shrink } from './shrink.ts'
import { type Flaw, type Outcome, simulate } from './simulate.ts'

export interface Finding {
  readonly seed: number
  readonly outcome: Outcome
  /** The run of the shortened plan. */
  readonly shortest: Outcome
}

export interface SearchOptions {
  readonly seed: number
  /** Asked after each run. */
  readonly goesOn: (runs: number) => boolean
  readonly flaw?: Flaw
  readonly shrinks?: boolean
}

/** The first seed, from the given one on, that breaks a promise; null if none did. */
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

/** Everything that is needed to see what happened, and to repeat it. */
export function report({ seed, outcome, shortest }: Finding): string {
  const { plan, trace } = shortest
  const broken = outcome.violations.slice(0, shownMax).map(({ promise, what }) => `  broken: ${promise}\n    ${what}`)
  const parts = [...plan.faults, ...plan.deeds].map((part) => `  ${JSON.stringify(part)}`)
  return [
    `Seed ${seed} breaks a promise. Replay it with`,
    `  npm run simulate -- --seed ${seed} --trace`,
    ...broken,
    `The shortest run that still breaks it (${plan.places} processes, no faults from ${plan.calmAt} ms on):`,
    ...parts,
    'Its trace:',
    ...tail(trace, linesMax),
  ].join('\n')
}

const shownMax = 5
const linesMax = 120

/** The last lines. */
export function tail(lines: readonly string[], max: number): string[] {
  if (lines.length <= max) return [...lines]
  return [`  … ${lines.length - max} lines before`, ...lines.slice(-max)]
}
