// Runs in a thread and blocks it in native code, where `terminate` cannot end it.
import { execSync } from 'node:child_process'
import { threadId } from 'node:worker_threads'
import type { Job } from '../../../src/worker/job.ts'

export interface BlockerTask {
  /** How long the call blocks; 0 does not block. */
  readonly seconds: number
  /** Blocks only in this attempt. */
  readonly attempt?: number
}

export default (job: Job<BlockerTask>) => {
  const { seconds, attempt = job.attempt } = job.payload
  job.log('started')
  if (seconds > 0 && job.attempt === attempt) execSync(`sleep ${seconds}`)
  return { threadId, attempt: job.attempt }
}
