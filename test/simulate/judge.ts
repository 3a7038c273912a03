// The verdict on a run: what was seen on the way, what crashes are judged by, the slots of the schedule, and what watchers
// were told.

import type { JobInfo } from '../../src/client/job-info.ts'
import { type Findings, judge, type Promised } from '../torture/judge.ts'
import type { Plan } from './plan.ts'

export interface Violation {
  readonly promise: string
  readonly what: string
}

export interface RunFindings {
  readonly findings: Findings
  /** The jobs of the schedule, which has a slot every second. */
  readonly slots: readonly JobInfo[]
  readonly missed: Plan['missed']
  readonly declaredAt: number
  readonly unscheduledAt: number
  /** How what watchers were told differs from what is. */
  readonly untold: string | null
}

/** Judged there by when answers were heard, which may be in another order here; the checker sees calls land. */
const seenLanding: ReadonlySet<Promised> = new Set<Promised>([
  'a job has one holder at a time, and a fence one claim',
  'a claim gets nothing from a paused queue',
])

/** A slot fires so much later at most while somebody is there. */
const lateMaxMs = 1_500

export function judgeRun(run: RunFindings): Violation[] {
  const broken = [...judge(run.findings)].flatMap(([promise, { faults }]) =>
    seenLanding.has(promise) ? [] : faults.map((what) => ({ promise, what })),
  )
  const told = run.untold === null ? [] : [{ promise: 'every change is told', what: run.untold }]
  return [...broken, ...judgeSlots(run), ...told]
}

function judgeSlots({ slots, missed, declaredAt, unscheduledAt }: RunFindings): Violation[] {
  if (missed === null) return []
  const promise = 'a slot fires once'
  const fired = slots.map(({ headers }) => Date.parse(headers['holdfast-slot'] ?? ''))
  const twice = fired.filter((slot, n) => fired.indexOf(slot) < n).map((slot) => `${timeOf(slot)} fired twice`)
  const due: number[] = []
  for (let slot = declaredAt - (declaredAt % 1_000) + 1_000; slot <= unscheduledAt - lateMaxMs; slot += 1_000)
    due.push(slot)
  const forgotten = due.filter((slot) => !fired.includes(slot)).map((slot) => `${timeOf(slot)} did not fire`)
  const never = fired.length === 0 ? ['no slot ever fired'] : []
  return [...twice, ...(missed === 'all' ? forgotten : never)].map((what) => ({ promise, what }))
}

function timeOf(slot: number): string {
  return new Date(slot).toISOString().slice(11, 19)
}
