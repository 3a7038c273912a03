// Helpers that make the lines of a section, and format the numbers in their names.

import type { Line } from './report.ts'
import { quantile } from './statistics.ts'

export function rate(name: string, rounds: Record<string, readonly number[]> = {}): Line {
  return { name, unit: 'jobs/s', rounds }
}

export function time(name: string, rounds: Record<string, readonly number[]> = {}, unit: 'ms' | 'µs'): Line {
  return { name, unit, rounds }
}

export function named(name: string, samples: readonly number[]): Record<string, number> {
  return { [`${name} p50`]: quantile(samples, 0.5), [`${name} p99`]: quantile(samples, 0.99) }
}

export function renamed(figures: Record<string, number[]> = {}, columns: readonly string[]): Record<string, number[]> {
  return Object.fromEntries(Object.values(figures).map((rounds, i) => [columns[i] as string, rounds]))
}

export function thousands(count: number): string {
  return count.toLocaleString('en')
}

export function short(count: number): string {
  return count >= 1_000_000 ? `${count / 1_000_000}M` : `${count / 1_000}k`
}

export function roundUp(count: number, to: number): number {
  return Math.ceil(count / to) * to
}
