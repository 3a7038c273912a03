// Logs facts that cannot be cloned, and makes calls that are refused.
import type { Job } from '../../../src/worker/job.ts'

export default async (job: Job) => {
  job.log('look', { rows: 3, call: () => 1 })
  const codeOf = (error: { readonly code: string }) => error.code
  const progress = await job.progress(7).catch(codeOf)
  const extend = await job.extend((() => 1) as never).catch(codeOf)
  return `refused: ${progress}, ${extend}`
}
