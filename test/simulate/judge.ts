// The verdict on a run: by the judge of the torture run, by the slots of the schedule, and by the changes that watchers
// received.

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
  /** How the changes that watchers received differ from the store; null if they do not. */
  readonly unreported: string | null
}

/** The torture run judges these by when answers arrived, which may be in another order here. The checker sees calls commit. */
const judgedByChecker: ReadonlySet<Promised> = new Set<Promised>([
  'a job has one holder at a time, and a fence one claim',
  'a claim gets nothing from a paused queue',
])

/** A slot fires at most this much late while a process is there. */
const lateMaxMs = 1_500

export function judgeRun(run: RunFindings): Violation[] {
  const broken = [...judge(run.findings)].flatMap(([promise, { faults }]) =>
    judgedByChecker.has(promise) ? [] : faults.map((what) => ({ promise, what })),
  )
  const changes = run.unreported === null ? [] : [{ promise: 'watchers get every change', what: run.unreported }]
  return [...broken, ...judgeSlots(run), ...changes]
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
