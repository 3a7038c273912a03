// Why a run is aborted: the reasons that its signal gives.

import { HoldfastError } from '../errors.ts'
import type { ClaimedJob } from '../store/store.ts'

type Named = Pick<ClaimedJob, 'id' | 'queue' | 'attempt'>

export function leaseLost({ id, queue, attempt }: Named): HoldfastError {
  const message = `Job ${id} is no longer leased to this worker: the lease ran out and the job was rescued, or it was settled elsewhere.`
  return new HoldfastError('LEASE_LOST', message, { id, queue, attempt })
}

export function jobCancelled({ id, queue }: Named): HoldfastError {
  return new HoldfastError('JOB_CANCELLED', `Job ${id} was cancelled.`, { id, queue })
}

/** A checkpoint, or more time, was asked for after the end. */
export function jobEnded({ id }: Named, what: string): HoldfastError {
  return new HoldfastError('LEASE_LOST', `Job ${id} has ended; there is nothing to ${what}.`, { id })
}
