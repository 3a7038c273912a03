// The results of a comparison: a file for each workload, with every round, so that page and charts can be made again from them.

import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Machine } from '../machine.ts'
import type { ContenderName } from './contenders.ts'
import type { Sizes, Taken, WorkloadName } from './workloads.ts'

export interface Result {
  readonly workload: WorkloadName
  readonly takenAt: string
  readonly isQuick: boolean
  readonly machine: Omit<Machine, 'path' | 'load'>
  readonly versions: Readonly<Record<string, string>>
  readonly server: Readonly<Record<string, string>>
  readonly sizes: Sizes
  readonly contenders: readonly ContenderName[]
  /** By measure and contender, one figure a round; null if there is none. */
  readonly rounds: Readonly<Record<string, Readonly<Record<string, readonly (number | null)[]>>>>
  readonly series?: Taken['series']
  /** Set if a contender takes no part: why. */
  readonly without: string | null
}

export type Results = Partial<Record<WorkloadName, Result>>

export function writeResult(directory: string, result: Result): void {
  mkdirSync(directory, { recursive: true })
  writeFileSync(join(directory, `${result.workload}.json`), `${resultText(result)}\n`)
}

/** One line for each list of figures. */
function resultText(result: Result): string {
  const rounded = (_: string, value: unknown) =>
    typeof value === 'number' && !Number.isInteger(value) ? Number(value.toPrecision(6)) : value
  const text = JSON.stringify(result, rounded, 2)
  return text.replace(/\[[^[\]{}]*\]/g, (list) => list.replace(/\s+/g, ' ').replace('[ ', '[').replace(' ]', ']'))
}

export function readResults(directory: string): Results {
  if (!existsSync(directory)) return {}
  const files = readdirSync(directory).filter((name) => name.endsWith('.json'))
  const results = files.map((name) => JSON.parse(readFileSync(join(directory, name), 'utf8')) as Result)
  return Object.fromEntries(results.map((result) => [result.workload, result]))
}

/** The rounds of one contender that gave a figure. */
export function figuresOf(result: Result | undefined, measure: string, name: ContenderName): number[] {
  return (result?.rounds[measure]?.[name] ?? []).filter((figure) => figure !== null)
}
