// The table of promises: how often each was checked in all rounds, and how often it was broken.

import { judge, type Promised, type Ruling } from './judge.ts'
import type { RoundReport } from './round.ts'

export class Tally {
  rounds = 0
  jobs = 0
  readonly #rulings = new Map<Promised, { checks: number; violations: number }>()
  readonly #faults = new Map<string, number>()
  readonly #calls = { answered: 0, refused: 0, unknown: 0 }

  /** Judges a round and adds it. Returns the promises that it broke. */
  add({ findings, faults, jobs }: RoundReport): Map<Promised, Ruling> {
    this.rounds += 1
    this.jobs += jobs
    for (const [kind, times] of Object.entries(faults)) this.#faults.set(kind, (this.#faults.get(kind) ?? 0) + times)
    for (const { answer, refused } of findings.notes) {
      this.#calls[answer !== null ? 'answered' : refused !== null ? 'refused' : 'unknown'] += 1
    }
    const verdict = judge(findings)
    for (const [promised, { checks, faults }] of verdict) {
      const sum = this.#rulings.get(promised) ?? { checks: 0, violations: 0 }
      this.#rulings.set(promised, { checks: sum.checks + checks, violations: sum.violations + faults.length })
    }
    return new Map([...verdict].filter(([, { faults }]) => faults.length > 0))
  }

  get violations(): number {
    return [...this.#rulings.values()].reduce((sum, { violations }) => sum + violations, 0)
  }

  toString(): string {
    const width = Math.max(...[...this.#rulings.keys()].map(({ length }) => length))
    const row = (name: string, checks: string, violations: string) =>
      `${name.padEnd(width)}  ${checks.padStart(10)}  ${violations.padStart(10)}\n`
    const rows = [...this.#rulings].map(([name, { checks, violations }]) => row(name, `${checks}`, `${violations}`))
    const faults = [...this.#faults].sort(([a], [b]) => a.localeCompare(b)).map(([kind, times]) => `${times} ${kind}`)
    const { answered, refused, unknown } = this.#calls
    return [
      row('promise', 'checks', 'violations'),
      ...rows,
      `${this.rounds} rounds, ${this.jobs} jobs; calls: ${answered} answered, ${refused} refused, ${unknown} unknown\n`,
      `faults: ${faults.join(', ') || 'none'}\n`,
    ].join('')
  }
}
