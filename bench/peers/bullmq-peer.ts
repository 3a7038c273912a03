// BullMQ on Redis: three hundred at a time, finished jobs removed unless they are to be kept.

import { load, orderOf, type Peer, type PeerPayload, type Place, type Purpose, queueName } from './peer.ts'

interface Queue {
  add(name: string, data: object): Promise<unknown>
  addBulk(jobs: readonly { name: string; data: object }[]): Promise<unknown>
  getJobCounts(...states: string[]): Promise<Record<string, number>>
  close(): Promise<void>
}

interface Worker {
  on(event: 'error', listener: (error: unknown) => void): void
  waitUntilReady(): Promise<unknown>
  close(): Promise<void>
}

interface Module {
  readonly Queue: new (name: string, options: object) => Queue
  readonly Worker: new (name: string, handler: (job: { data: PeerPayload }) => Promise<void>, options: object) => Worker
}

export interface BullOptions {
  readonly fsync: 'everysec' | 'always'
  readonly keeps: boolean
}

const settings = {
  throughput: { concurrency: 300 },
  defaults: {},
  soonest: { lockDuration: 5_000, stalledInterval: 1_000 },
} as const

export async function openBull({ redis }: Place, { fsync, keeps }: BullOptions, purpose: Purpose): Promise<Peer> {
  const { Queue, Worker } = await load<Module>('bullmq')
  const connection = { host: '127.0.0.1', port: redis[fsync], maxRetriesPerRequest: null }
  const queue = new Queue(queueName, {
    connection,
    ...(!keeps && { defaultJobOptions: { removeOnComplete: true } }),
  })
  return {
    enqueue: (job) => queue.add('job', job),
    enqueueMany: (jobs) => queue.addBulk(jobs.map((data) => ({ name: 'job', data }))),
    work: async (handler) => {
      const worker = new Worker(queueName, async ({ data }) => handler(orderOf(data), data), {
        connection,
        ...settings[purpose],
        ...(!keeps && { removeOnComplete: { count: 0 } }),
      })
      worker.on('error', (error) => console.error(error))
      await worker.waitUntilReady()
      return { stop: () => worker.close() }
    },
    contents: async () => {
      const counts = await queue.getJobCounts('wait', 'delayed', 'active', 'completed', 'failed')
      const { wait = 0, delayed = 0, active = 0, completed = 0, failed = 0 } = counts
      if (failed > 0) throw new Error(`${failed} jobs failed: this run is invalid.`)
      return { waiting: wait + delayed, running: active, kept: completed }
    },
    [Symbol.asyncDispose]: () => queue.close(),
  }
}
