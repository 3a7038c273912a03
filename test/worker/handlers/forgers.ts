// Runs in a thread and uses what Node gives every module to reach the main thread.
import { setTimeout as sleep } from 'node:timers/promises'
import { MessagePort, parentPort, threadId, workerData } from 'node:worker_threads'
import type { Job } from '../../../src/worker/job.ts'

export type Forgery = 'fail' | 'return' | 'close the port' | 'break its end' | 'list what is reachable'

export interface ForgerTask {
  readonly as: Forgery
  /** Sent over `parentPort` first. */
  readonly messages?: readonly unknown[]
}

const received: unknown[] = []
parentPort?.on('message', (message) => received.push(message))
parentPort?.unref()

export default async (job: Job<ForgerTask>) => {
  const { as, messages = [] } = job.payload
  for (const message of messages) parentPort?.postMessage(message)
  if (as === 'close the port') parentPort?.close()
  if (as === 'break its end') breakCosts(job)
  await sleep(20)
  if (as === 'fail') throw new Error('the true end')
  if (as === 'list what is reachable') return { received, keys: Object.keys(workerData), ports: portsIn(workerData) }
  return threadId
}

/** As a wrong polyfill would do: the costs at the end of the job are not numbers any more. */
function breakCosts(job: Job<ForgerTask>): void {
  job.cost('tokens', 1)
  const { fromEntries } = Object
  Object.fromEntries = () => {
    Object.fromEntries = fromEntries
    return { tokens: 'many' }
  }
}

function portsIn(value: unknown, depth = 3): number {
  if (value instanceof MessagePort) return 1
  if (typeof value !== 'object' || value === null || depth === 0) return 0
  return Reflect.ownKeys(value).reduce((sum, key) => sum + portsIn(Reflect.get(value, key), depth - 1), 0)
}
