// Annotations of a job beside its result: an outcome, a warning, costs.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { isPlainObject } from '../job/codec.ts'
import { checkNumber, checkOptions, checkOutcome } from '../job/names.ts'
import type { Annotations, Costs } from '../job/record.ts'
import { show } from '../runtime/duration.ts'

export interface AnnotationOptions {
  /** A name such as `saved` or `duplicate`. */
  readonly outcome?: string
  /** What was not quite right, such as `consent-wall`. */
  readonly warning?: string
  /** Amounts by name, such as `{ tokens: 1200 }`. */
  readonly costs?: Costs
}

export function toAnnotations(options: AnnotationOptions, what: string): Annotations | null {
  checkOptions(options, what, ['outcome', 'warning', 'costs'])
  const { outcome, warning, costs } = options
  return annotationsOf({
    outcome: outcome === undefined ? null : checkOutcome(outcome, 'outcome'),
    warning: warning === undefined ? null : checkOutcome(warning, 'warning'),
    costs: toCosts(costs),
  })
}

/** Null if all of them are empty. */
export function annotationsOf(annotations: Annotations): Annotations | null {
  const { outcome, warning, costs } = annotations
  return outcome === null && warning === null && costs === null ? null : annotations
}

export function toCosts(costs: Costs | undefined): Costs | null {
  if (costs === undefined) return null
  if (!isPlainObject(costs)) throw invalid(`costs are amounts by name, such as { tokens: 1200 }; got ${show(costs)}.`)
  const sum = new CostSum()
  for (const [name, amount] of Object.entries(costs)) sum.add(name, amount)
  return sum.total
}

/** Sums amounts by name. */
export class CostSum {
  readonly #amounts = new Map<string, number>()

  get total(): Costs | null {
    return this.#amounts.size === 0 ? null : Object.fromEntries(this.#amounts)
  }

  add(name: string, amount: number): void {
    const { costNamesMax } = bounds
    checkOutcome(name, 'cost')
    checkNumber(amount, `the cost ${name}`, 0, Number.MAX_SAFE_INTEGER)
    if (this.#amounts.size >= costNamesMax && !this.#amounts.has(name)) {
      throw invalid(`The costs of a job have at most ${costNamesMax} names.`)
    }
    this.#amounts.set(name, (this.#amounts.get(name) ?? 0) + amount)
  }
}

function invalid(message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option: 'costs' })
}
