// A handler in its own thread that stages a follow-up job.
import type { Job } from '../../../src/index.ts'

export default function stagesAJob(job: Job): void {
  job.effects.enqueue('next', 1, { headers: { tenant: 'a' } })
}
