// The plan of a round, drawn from its seed: which processes take part, and which faults come when.

import type { Moment } from '../support/cutting-proxy.ts'
import { Random } from './random.ts'
import type { StoreName } from './site.ts'

export type Role = 'produces' | 'claims' | 'works' | 'watches'

export interface Part {
  readonly role: Role
  readonly seed: number
  /** Whether it gets wake-ups. */
  readonly listens: boolean
  /** On PostgreSQL: whether store and application share one small pool. */
  readonly sharesPool: boolean
}

export type Fault =
  /** Killed, or asked to end. Replaced in both cases. */
  | { readonly kind: 'kill' | 'retire'; readonly processIndex: number }
  /** Stopped until its leases have expired, then continued. */
  | { readonly kind: 'freeze' | 'block'; readonly processIndex: number; readonly ms: number }
  /** The clock of the machine is set, or that of one process if the store has its own clock. */
  | { readonly kind: 'clock'; readonly processIndex: number; readonly ms: number }
  /** A job that kills every process it runs in. */
  | { readonly kind: 'poison'; readonly processIndex: number }
  | { readonly kind: 'snapshot' | 'transaction' | 'fullDisk' | 'hold' | 'restart' | 'crash'; readonly ms: number }
  | { readonly kind: 'drop' | 'unsubscribe' }
  /** Messages on the channel of wake-ups that no store writes. */
  | { readonly kind: 'forge' }
  | { readonly kind: 'cut'; readonly moment: Moment }

export type FaultKind = Fault['kind']

export interface Timed {
  readonly atMs: number
  readonly fault: Fault
}

export interface Plan {
  readonly parts: readonly Part[]
  readonly faults: readonly Timed[]
}

export interface PlanOptions {
  readonly seed: number
  readonly store: StoreName
  readonly seconds: number
}

const parts: readonly Role[] = ['watches', 'produces', 'produces', 'claims', 'works', 'works']
/** The mean time between two faults. */
const everyMs = 800

const everywhere = {
  kill: 30,
  retire: 8,
  freeze: 8,
  block: 8,
  clock: 5,
  poison: 2,
  snapshot: 4,
  transaction: 4,
  fullDisk: 2,
}
const weights: Readonly<Record<StoreName, Readonly<Record<string, number>>>> = {
  sqlite: everywhere,
  postgres: { ...everywhere, cut: 15, drop: 5, hold: 5, restart: 2, crash: 3, unsubscribe: 4, forge: 4 },
}

export function planOf({ seed, store, seconds }: PlanOptions): Plan {
  const random = new Random(seed)
  const processes = parts.map(
    (role): Part => ({
      role,
      seed: random.below(2 ** 32),
      listens: random.chance(0.8),
      sharesPool: random.chance(0.4),
    }),
  )
  const faults: Timed[] = []
  for (let atMs = random.between(0, 2 * everyMs); atMs < seconds * 1_000; atMs += random.between(0, 2 * everyMs)) {
    faults.push({ atMs: Math.round(atMs), fault: draw(random, random.weighted(weights[store]) as FaultKind) })
  }
  return { parts: processes, faults }
}

function draw(random: Random, kind: FaultKind): Fault {
  const processIndex = random.below(parts.length)
  const ms = (from: number, to: number) => Math.round(random.between(from, to))
  switch (kind) {
    case 'kill':
    case 'retire':
      return { kind, processIndex }
    case 'poison':
      return { kind, processIndex: parts.indexOf('produces') }
    case 'freeze':
    case 'block':
      return { kind, processIndex, ms: ms(100, 1_500) }
    case 'clock':
      return { kind, processIndex, ms: ms(-4_000, 4_000) }
    case 'snapshot':
      return { kind, ms: ms(200, 5_000) }
    case 'transaction':
      return { kind, ms: ms(50, 1_000) }
    case 'fullDisk':
      return { kind, ms: ms(300, 1_500) }
    case 'hold':
      return { kind, ms: ms(50, 1_500) }
    case 'restart':
    case 'crash':
      return { kind, ms: ms(0, 500) }
    case 'drop':
    case 'unsubscribe':
    case 'forge':
      return { kind }
    case 'cut':
      return { kind, moment: random.pick(['before', 'during', 'after'] as const) }
  }
}
