// Makes findings, and runs a list of checks into a list of findings. A check that throws becomes a finding itself, and the
// other checks still run.

import { isHoldfastError } from '../errors.ts'
import type { Finding } from './store.ts'

export type Facts = Finding['facts']

/** Examines one thing. A check that does not apply here answers no finding. */
export type Check<Subject> = (subject: Subject) => Promise<readonly Finding[]> | readonly Finding[]

export async function runChecks<Subject>(
  checks: Readonly<Record<string, Check<Subject>>>,
  subject: Subject,
): Promise<Finding[]> {
  const findings: Finding[] = []
  for (const [id, check] of Object.entries(checks)) {
    try {
      findings.push(...(await check(subject)))
    } catch (error) {
      findings.push(notExamined(id, error))
    }
  }
  return findings
}

function notExamined(id: string, error: unknown): Finding {
  const why = error instanceof Error ? error.message : String(error)
  const code = isHoldfastError(error) ? error.code : null
  const fix = 'Fix the cause, then run the doctor again.'
  return warning(id, `The check ${id} could not be made: ${why}`, fix, { code })
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
