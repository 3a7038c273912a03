// What the page shows of the results: which measure of which workload, in which unit, for which contenders.

import type { ContenderName } from './contenders.ts'
import type { WorkloadName } from './workloads.ts'

export type FigureUnit = 'jobs/s' | 'ms' | 's' | 'µs' | 'bytes' | 'MiB' | 'ratio'

export interface Figure {
  readonly id: string
  readonly workload: WorkloadName
  readonly title: string
  readonly columns: readonly Column[]
  readonly leaveOut?: readonly ContenderName[]
}

export interface Column {
  readonly name: string
  readonly measure: string
  readonly unit: FigureUnit
  /** Less is better. */
  readonly isLess?: boolean
}

const rate = (name: string, measure: string): Column => ({ name, measure, unit: 'jobs/s' })
const less = (name: string, measure: string, unit: FigureUnit): Column => ({ name, measure, unit, isLess: true })
const byHandNames = ['postgres-by-hand', 'postgres-bare-by-hand', 'pg-boss-by-hand'] as const
const rawNames = [...byHandNames, 'raw-textbook', 'raw-reference', 'raw-bare'] as const

export const figures = {
  single: {
    id: 'single',
    workload: 'single',
    title: 'Single enqueue: 32 callers that each wait for their own answer',
    columns: [rate('jobs/s', 'rate')],
  },
  bulk: {
    id: 'bulk',
    workload: 'drain',
    title: 'Bulk enqueue: a thousand jobs a call',
    columns: [rate('jobs/s', 'enqueue rate')],
    leaveOut: ['sqlite-bare', 'postgres-bare', 'bullmq-kept', ...byHandNames],
  },
  drain: {
    id: 'drain',
    workload: 'drain',
    title: 'Drain: a worker and a backlog of jobs that do nothing',
    columns: [rate('jobs/s', 'drain rate')],
  },
  cycle: {
    id: 'cycle',
    workload: 'cycle',
    title: 'Full cycle at steady state: a producer just ahead of a worker',
    columns: [rate('jobs/s', 'rate')],
  },
  'pick-up': {
    id: 'pick-up',
    workload: 'pick-up',
    title: 'Idle pick-up: from enqueue in one process to the handler in another',
    columns: [less('p50', 'p50', 'ms'), less('p99', 'p99', 'ms')],
  },
  backlog: {
    id: 'backlog',
    workload: 'backlog',
    title: 'Drain while a million jobs wait',
    columns: [
      rate('a million wait', 'many'),
      rate('fifty thousand wait', 'few'),
      { name: 'ratio', measure: 'ratio', unit: 'ratio' },
    ],
  },
  snapshot: {
    id: 'snapshot',
    workload: 'snapshot',
    title: 'Full cycle while a snapshot is held open',
    columns: [
      rate('first 10 s', 'first'),
      rate('last 10 s', 'last'),
      { name: 'ratio', measure: 'ratio', unit: 'ratio' },
    ],
  },
  recovery: {
    id: 'recovery',
    workload: 'recovery',
    title: 'Recovery: from kill -9 of a worker until another one has its job',
    columns: [less('defaults', 'defaults', 's'), less('best settings', 'soonest', 's')],
  },
  processor: {
    id: 'processor',
    workload: 'drain',
    title: 'Processor time a drained job, in the client and in the server',
    columns: [less('client', 'drain clientUs', 'µs'), less('server', 'drain serverUs', 'µs')],
    leaveOut: rawNames,
  },
  costs: {
    id: 'costs',
    workload: 'drain',
    title: 'What a job costs otherwise',
    columns: [
      less('memory, at most', 'drain rss', 'MiB'),
      less('enqueue, client', 'enqueue clientUs', 'µs'),
      less('enqueue, server', 'enqueue serverUs', 'µs'),
      less('log, enqueue', 'enqueue logBytes', 'bytes'),
      less('log, drain', 'drain logBytes', 'bytes'),
      less('stored, waiting', 'storage waiting', 'bytes'),
      less('stored, drained', 'storage kept', 'bytes'),
    ],
    leaveOut: rawNames,
  },
} as const satisfies Record<string, Figure>

export type FigureName = keyof typeof figures

/** The recovery times in the documentation of peers, where a run does not wait that long; in seconds. */
export const documentedRecoveryS: Partial<Record<ContenderName, number>> = { 'pg-boss': 900, graphile: 14_400 }
/** The same for River, which takes no part. */
export const riverRecoveryS = 3_600

const scale: Readonly<Record<FigureUnit, number>> = {
  'jobs/s': 1,
  ms: 1,
  s: 1 / 1_000,
  µs: 1,
  bytes: 1,
  MiB: 1 / 2 ** 20,
  ratio: 1,
}

/** A measured value in the unit in which it is shown. */
export function inUnit(value: number, unit: FigureUnit): number {
  return value * scale[unit]
}

export function figureText(value: number, unit: FigureUnit): string {
  if (unit === 'jobs/s')
    return value >= 1_000 ? `${(value / 1_000).toFixed(value < 99_500 ? 1 : 0)}k` : value.toFixed(0)
  if (unit === 'ratio') return value.toFixed(2)
  if (unit === 'bytes') return Math.round(value).toLocaleString('en')
  if (unit === 's' && value >= 3_600) return `${value / 3_600} h`
  if (unit === 's' && value >= 120) return `${value / 60} min`
  return value.toFixed(value < 10 ? 1 : 0)
}
