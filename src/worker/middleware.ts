import { HoldfastError } from '../errors.ts'
import { Job } from './job.ts'
import type { Handler, Middleware } from './options.ts'

/** The handler with all middleware around it, the first outermost. Middleware that was abandoned cannot call the handler. */
export function compose(handler: Handler, middleware: readonly Middleware[]): (job: Job) => unknown {
  if (middleware.length === 0) return handler
  const ifHeld = (job: Job) => {
    if (Job.isHeld(job)) return handler(job)
    throw new HoldfastError('LEASE_LOST', `Job ${job.id} was given up; its handler is not called.`, { id: job.id })
  }
  return middleware.reduceRight<(job: Job) => unknown>(
    (inner, outer) => (job) => outer(job, async () => inner(job)),
    ifHeld,
  )
}
