// The contenders, in the order of charts and tables, and how each is set up. A process opens one by its name.

import { openBull } from './bullmq-peer.ts'
import { openGraphile } from './graphile-peer.ts'
import { openHoldfast } from './holdfast-peer.ts'
import type { Peer, Place, Purpose } from './peer.ts'
import { openBoss } from './pg-boss-peer.ts'
import { openRawListener } from './raw-listener.ts'
import { openRawPeer } from './raw-peer.ts'

export type Family = 'holdfast' | 'pg-boss' | 'graphile' | 'bullmq' | 'raw'

export interface Contender {
  readonly label: string
  readonly family: Family
  readonly engine: 'sqlite' | 'postgres' | 'redis'
  /** Whether finished jobs can still be read. */
  readonly keeps: boolean
  /** Which Redis. */
  readonly redis?: 'everysec' | 'always'
  /** The schema of its tables, if it is another one than the place's. */
  readonly schema?: string | undefined
  /** For the page: its settings for throughput. */
  readonly settings: string
  open(place: Place, purpose: Purpose): Promise<Peer>
}

export type ContenderName = keyof typeof contenders

const boss =
  'a queue with `partition: true`, two workers (`localConcurrency`) with `batchSize: 500` and `burstWhenBatchFull`'
const bull = '`concurrency: 300`, `addBulk`'
const raw = { family: 'raw', engine: 'postgres', keeps: false, schema: 'raw_bench' } as const

export const contenders = {
  sqlite: {
    label: 'Holdfast on SQLite',
    family: 'holdfast',
    engine: 'sqlite',
    keeps: true,
    settings: 'a worker of `concurrency: 1000`; finished jobs stay for a day, the default',
    open: (place, purpose) => openHoldfast(place, { store: 'sqlite', keeps: true }, purpose),
  },
  'sqlite-bare': {
    label: 'Holdfast on SQLite, nothing kept',
    family: 'holdfast',
    engine: 'sqlite',
    keeps: false,
    settings: 'the same with `retain: { done: 0 }`',
    open: (place, purpose) => openHoldfast(place, { store: 'sqlite', keeps: false }, purpose),
  },
  postgres: {
    label: 'Holdfast on PostgreSQL',
    family: 'holdfast',
    engine: 'postgres',
    keeps: true,
    settings: 'a worker of `concurrency: 1000`; finished jobs stay for a day, the default',
    open: (place, purpose) => openHoldfast(place, { store: 'postgres', keeps: true }, purpose),
  },
  'postgres-bare': {
    label: 'Holdfast on PostgreSQL, nothing kept',
    family: 'holdfast',
    engine: 'postgres',
    keeps: false,
    settings: 'the same with `retain: { done: 0 }`',
    open: (place, purpose) => openHoldfast(place, { store: 'postgres', keeps: false }, purpose),
  },
  'postgres-by-hand': {
    label: 'Holdfast on PostgreSQL, by hand',
    family: 'holdfast',
    engine: 'postgres',
    keeps: true,
    settings: 'two loops of `claim` and `done` by 500 instead of a worker',
    open: (place, purpose) => openHoldfast(place, { store: 'postgres', keeps: true, isByHand: true }, purpose),
  },
  'postgres-bare-by-hand': {
    label: 'Holdfast on PostgreSQL, by hand, nothing kept',
    family: 'holdfast',
    engine: 'postgres',
    keeps: false,
    settings: 'the same two loops with `retain: { done: 0 }`',
    open: (place, purpose) => openHoldfast(place, { store: 'postgres', keeps: false, isByHand: true }, purpose),
  },
  'pg-boss': {
    label: 'pg-boss',
    family: 'pg-boss',
    engine: 'postgres',
    keeps: true,
    settings: `${boss}; \`notify: true\`. Finished jobs stay for seven days, its default; it cannot drop them at once`,
    open: (place, purpose) => openBoss(place, { notify: true }, purpose),
  },
  'pg-boss-polling': {
    label: 'pg-boss, no notify',
    family: 'pg-boss',
    engine: 'postgres',
    keeps: true,
    settings: 'the same without `notify`: enqueue is faster, idle workers poll twice a second',
    open: (place, purpose) => openBoss(place, { notify: false }, purpose),
  },
  'pg-boss-by-hand': {
    label: 'pg-boss, by hand',
    family: 'pg-boss',
    engine: 'postgres',
    keeps: true,
    settings: 'two loops of `fetch` and `complete` by 500 instead of workers',
    open: (place, purpose) => openBoss(place, { notify: true, isByHand: true }, purpose),
  },
  graphile: {
    label: 'Graphile Worker',
    family: 'graphile',
    engine: 'postgres',
    keeps: false,
    settings:
      '`concurrentJobs: 500`, `localQueue: { size: 2000 }`, `completeJobBatchDelay: 0`, `failJobBatchDelay: 0`, `maxPoolSize: 10`. Finished jobs are deleted; it cannot keep them',
    open: (place, purpose) => openGraphile(place, purpose),
  },
  'bullmq-everysec': {
    label: 'BullMQ, fsync every second',
    family: 'bullmq',
    engine: 'redis',
    keeps: false,
    redis: 'everysec',
    settings: `${bull}, \`removeOnComplete: { count: 0 }\`; Redis with \`appendfsync everysec\`, which may lose a second of answered jobs`,
    open: (place, purpose) => openBull(place, { fsync: 'everysec', keeps: false }, purpose),
  },
  'bullmq-always': {
    label: 'BullMQ, fsync always',
    family: 'bullmq',
    engine: 'redis',
    keeps: false,
    redis: 'always',
    settings: 'the same; Redis with `appendfsync always`, as durable as the others',
    open: (place, purpose) => openBull(place, { fsync: 'always', keeps: false }, purpose),
  },
  'bullmq-kept': {
    label: 'BullMQ, fsync always, kept',
    family: 'bullmq',
    engine: 'redis',
    keeps: true,
    redis: 'always',
    settings: 'the same; finished jobs stay, its default',
    open: (place, purpose) => openBull(place, { fsync: 'always', keeps: true }, purpose),
  },
  'raw-textbook': {
    ...raw,
    label: 'raw SQL: skip locked',
    settings: 'rows marked with `for update skip locked`, deleted when done; two loops by 500',
    open: (place) => openRawPeer(place, 'textbook'),
  },
  'raw-reference': {
    ...raw,
    label: 'raw SQL: cursor',
    settings: 'the snapshot cursor that Holdfast started from, each job settled by its place; two loops by 500',
    open: (place) => openRawPeer(place, 'reference'),
  },
  'raw-bare': {
    ...raw,
    label: 'raw SQL: bare cursor',
    settings: 'the same idea as fast as we could make it, each job settled by its place; two loops by 500',
    open: (place) => openRawPeer(place, 'bare cursor, by place'),
  },
  'raw-listener': {
    ...raw,
    schema: undefined,
    label: 'raw SQL: row and notification',
    settings:
      'a row and a notification in one commit; the process that is notified deletes the row, and holds no lease',
    open: (place) => openRawListener(place),
  },
} as const satisfies Record<string, Contender>

export function contenderOf(name: ContenderName): Contender {
  return contenders[name]
}
