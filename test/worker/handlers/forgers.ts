// Runs in a thread and uses the ways to the main thread that Node gives to every module.
import { setTimeout as sleep } from 'node:timers/promises'
import { MessagePort, parentPort, threadId, workerData } from 'node:worker_threads'
import type { Job } from '../../../src/worker/job.ts'

export type Forgery = 'fail' | 'return' | 'close the port' | 'break its end' | 'list what is reachable'

export interface ForgerTask {
  readonly as: Forgery
  /** Sent over `parentPort` first. */
  readonly messages?: readonly unknown[]
}

const heard: unknown[] = []
parentPort?.on('message', (message) => heard.push(message))
parentPort?.unref()

export default async (job: Job<ForgerTask>) => {
  const { as, messages = [] } = job.payload
  for (const message of messages) parentPort?.postMessage(message)
  if (as === 'close the port') parentPort?.close()
  if (as === 'break its end') breakCosts(job)
  await sleep(20)
  if (as === 'fail') throw new Error('the true end')
  if (as === 'list what is reachable') return { heard, keys: Object.keys(workerData), ports: portsIn(workerData) }
  return threadId
}

/** As a wrong polyfill would: the costs at the end of the job are no amounts any more. */
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
