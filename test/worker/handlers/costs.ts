import type { Job } from '../../../src/worker/job.ts'

export default async (job: Job<string>) => {
  job.cost('tokens', 2)
  job.cost('tokens', 3)
  if (job.payload === 'fail') throw new Error('no')
  if (job.payload === 'offer') return job.offer({ from: job.batch }, { inbox: 'threads' })
  return job.outcome('saved', 1, { warning: 'slow' })
}
