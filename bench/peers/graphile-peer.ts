// Graphile Worker: five hundred at a time from a local queue of two thousand, completions in batches.

import { withClient } from '../postgres-contenders.ts'
import { load, orderOf, type Peer, type PeerPayload, type Place, type Purpose, queueName } from './peer.ts'

interface Utils {
  migrate(): Promise<void>
  addJob(task: string, payload: object): Promise<unknown>
  addJobs(jobs: readonly { identifier: string; payload: object }[]): Promise<unknown>
  release(): Promise<void>
}

interface Module {
  makeWorkerUtils(options: object): Promise<Utils>
  run(options: object): Promise<{ stop(): Promise<void> }>
  readonly Logger: new (factory: () => () => void) => object
}

const settings = {
  throughput: {
    concurrentJobs: 500,
    localQueue: { size: 2_000 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    maxPoolSize: 10,
  },
  defaults: {},
  soonest: { pollInterval: 500, minResetLockedInterval: 1_000, maxResetLockedInterval: 1_000 },
} as const

export async function openGraphile({ postgres: url, schema }: Place, purpose: Purpose): Promise<Peer> {
  const { makeWorkerUtils, run, Logger } = await load<Module>('graphile-worker')
  const logger = new Logger(() => () => {}) // the outcome of jobs is read from the store
  const preset = { worker: { connectionString: url, schema, logger, ...settings[purpose] } }
  const utils = await makeWorkerUtils({ preset })
  await utils.migrate()
  return {
    enqueue: (job) => utils.addJob(queueName, job),
    enqueueMany: (jobs) => utils.addJobs(jobs.map((payload) => ({ identifier: queueName, payload }))),
    work: (handler) => {
      const task = (job: PeerPayload) => handler(orderOf(job), job)
      return run({ preset, taskList: { [queueName]: task }, noHandleSignals: true })
    },
    contents: async () => {
      const { rows } = await withClient(url, (client) =>
        client.query<{ waiting: number; running: number }>(
          `select count(*) filter (where locked_at is null)::int as waiting,
                  count(*) filter (where locked_at is not null)::int as running from ${schema}._private_jobs`,
        ),
      )
      return { waiting: rows[0]?.waiting ?? 0, running: rows[0]?.running ?? 0, kept: 0 }
    },
    [Symbol.asyncDispose]: () => utils.release(),
  }
}
