// How findings are made, and how a list of checks becomes a list of findings: a check that cannot be made is a finding
// itself, and keeps no other from being made.

import { isHoldfastError } from '../errors.ts'
import type { Finding } from './store.ts'

export type Facts = Finding['facts']

/** Looks at one thing. No finding: it does not apply here. */
export type Check<Patient> = (patient: Patient) => Promise<readonly Finding[]> | readonly Finding[]

export async function runChecks<Patient>(
  checks: Readonly<Record<string, Check<Patient>>>,
  patient: Patient,
): Promise<Finding[]> {
  const findings: Finding[] = []
  for (const [id, check] of Object.entries(checks)) {
    try {
      findings.push(...(await check(patient)))
    } catch (error) {
      findings.push(unseen(id, error))
    }
  }
  return findings
}

function unseen(id: string, error: unknown): Finding {
  const why = error instanceof Error ? error.message : String(error)
  const code = isHoldfastError(error) ? error.code : null
  const fix = 'See to what it says, and look again.'
  return warning(id, `This could not be looked at: ${why}`, fix, { code })
}

export function fine(id: string, sentence: string, facts: Facts = {}): Finding {
  return { id, severity: 'fine', sentence, facts }
}

export function warning(id: string, sentence: string, fix: string, facts: Facts = {}): Finding {
  return { id, severity: 'warning', sentence, fix, facts }
}

export function wrong(id: string, sentence: string, fix: string, facts: Facts = {}): Finding {
  return { id, severity: 'wrong', sentence, fix, facts }
}

export function repaired(id: string, sentence: string, facts: Facts = {}): Finding {
  return { id, severity: 'fine', sentence, repaired: true, facts }
}

/** `1 job`, `12,000 jobs` */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`
}

/** The first few of many names. */
export function few(names: readonly string[], max = 3): string {
  const shown = names.slice(0, max).join(', ')
  return names.length > max ? `${shown} and ${names.length - max} more` : shown
}
