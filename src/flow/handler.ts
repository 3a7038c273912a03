// The handler of a flow's jobs: it executes the flow's function.

import { HoldfastError } from '../errors.ts'
import { Job } from '../worker/job.ts'
import type { AnyFlow } from './definition.ts'
import { Execution } from './execution.ts'

export function handlerOf(flow: AnyFlow): (job: Job) => Promise<unknown> {
  return (job) => {
    const host = Job.flowHostOf(job)
    if (host !== null) return new Execution(host, flow, job).run()
    throw new HoldfastError('UNSUPPORTED', 'A flow is executed by a worker, in its own thread.', { flow: flow.name })
  }
}
