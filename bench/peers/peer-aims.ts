// The aims of Holdfast compared with its peers, as ratios within one run. They are reported, never asserted.

import type { Aim } from '../aims.ts'
import type { ContenderName } from './contenders.ts'
import { documentedRecoveryS, riverRecoveryS } from './figures.ts'
import { figuresOf, type Result, type Results } from './results.ts'

const postgresPeers = ['pg-boss', 'pg-boss-polling', 'graphile'] as const
const bulls = ['bullmq-everysec', 'bullmq-always'] as const
const rawCursor = ['raw-reference'] as const
const others = [...postgresPeers, ...bulls] as const

export function peerAims(results: Results): Aim[] {
  const { single, drain, snapshot, recovery } = results
  const pickUp = results['pick-up']
  const aims = [
    most('single enqueue: PostgreSQL to the fastest peer on it', 20, single, 'rate', 'postgres', postgresPeers),
    most('single enqueue: PostgreSQL to BullMQ', 2, single, 'rate', 'postgres', bulls),
    most('single enqueue: SQLite to BullMQ', 2, single, 'rate', 'sqlite', bulls),
    most('single enqueue: PostgreSQL to BullMQ, as durable', 2, single, 'rate', 'postgres', ['bullmq-always']),
    most('single enqueue: SQLite to BullMQ, as durable', 2, single, 'rate', 'sqlite', ['bullmq-always']),
    most('bulk enqueue: PostgreSQL to the fastest peer', 1.3, drain, 'enqueue rate', 'postgres', others),
    most('bulk enqueue: SQLite to the fastest peer', 1.3, drain, 'enqueue rate', 'sqlite', others),
    most('drain, nothing kept: PostgreSQL to Graphile Worker', 2, drain, 'drain rate', 'postgres-bare', ['graphile']),
    most('drain, history kept: PostgreSQL to pg-boss', 2, drain, 'drain rate', 'postgres', ['pg-boss']),
    most('drain by hand: PostgreSQL to pg-boss', 2, drain, 'drain rate', 'postgres-by-hand', ['pg-boss-by-hand']),
    most(
      'drain by a worker: PostgreSQL to raw SQL with a cursor',
      0.8,
      drain,
      'drain rate',
      'postgres-bare',
      rawCursor,
    ),
    most(
      'drain by hand: PostgreSQL to raw SQL with a cursor',
      0.8,
      drain,
      'drain rate',
      'postgres-bare-by-hand',
      rawCursor,
    ),
    most('drain: SQLite to BullMQ', 4, drain, 'drain rate', 'sqlite-bare', bulls),
    least('idle pick-up p50: PostgreSQL to the best peer on it', 0.7, pickUp, 'p50', 'postgres', postgresPeers),
    alone('a snapshot held open: PostgreSQL, last to first', 0.9, figuresOf(snapshot, 'ratio', 'postgres')),
    ...recoveryAims(recovery),
  ]
  return aims.filter(({ figures }) => figures.length > 0)
}

function recoveryAims(recovery: Result | undefined): Aim[] {
  const ours = figuresOf(recovery, 'defaults', 'postgres')
  const known = {
    'pg-boss': documentedRecoveryS['pg-boss'],
    graphile: documentedRecoveryS.graphile,
    River: riverRecoveryS,
  }
  const sooner = Object.entries(known).map(([name, seconds = 0]) =>
    alone(
      `recovery by defaults: how many times sooner than ${name}`,
      10,
      ours.map((ms) => seconds / (ms / 1_000)),
    ),
  )
  const bull = most('recovery by defaults: BullMQ to PostgreSQL', 1, recovery, 'defaults', 'bullmq-everysec', [
    'postgres',
  ])
  return [...sooner, bull]
}

function alone(name: string, aim: number, figures: readonly number[]): Aim {
  return { name, unit: 'ratio', aim, figures }
}

type Names = readonly ContenderName[]

/** The ratio of a contender's figure to the largest of the others' in the same round. */
function most(
  name: string,
  aim: number,
  result: Result | undefined,
  measure: string,
  of: ContenderName,
  to: Names,
): Aim {
  return alone(name, aim, compared(result, measure, of, to, Math.max))
}

function least(name: string, aim: number, result: Result | undefined, measure: string, of: ContenderName, to: Names) {
  return { ...alone(name, aim, compared(result, measure, of, to, Math.min)), isMost: true }
}

function compared(
  result: Result | undefined,
  measure: string,
  of: ContenderName,
  to: Names,
  pick: (...values: number[]) => number,
): number[] {
  const others = to.map((name) => figuresOf(result, measure, name)).filter((rounds) => rounds.length > 0)
  if (others.length === 0) return []
  return figuresOf(result, measure, of).flatMap((figure, round) => {
    const beside = others.flatMap((rounds) => rounds[round] ?? [])
    return beside.length > 0 ? [figure / pick(...beside)] : []
  })
}
