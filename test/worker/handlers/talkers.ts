// Logs more lines than are sent, or facts that are not an object.
import type { Job } from '../../../src/worker/job.ts'

export default async (job: Job<{ readonly facts?: unknown; readonly lines?: number }>) => {
  const { facts, lines = 1 } = job.payload
  for (let line = 0; line < lines; line++) job.log(`line ${line}`, facts as Record<string, unknown>)
  for (let step = 0; step <= lines; step++) await job.progress(step / lines)
  return 'said'
}
