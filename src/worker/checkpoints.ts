// Sends checkpoints to the store, as `flushes.ts` describes: those of all runs of a worker together, one call at a time. A run
// asks for a checkpoint when it has something to write. What it writes is taken when the call goes out. So everything that a run
// adds in the same turn of the event loop, or while a call is in flight, is one request. A run that ends in the same turn takes
// it along with its settlement instead.

import { checkpointWeight } from '../client/weight.ts'
import { HoldfastError } from '../errors.ts'
import type { Timers } from '../runtime/clock.ts'
import type { CheckpointAnswer, CheckpointRequest } from '../store/store.ts'
import { type Answers, Flushes, type Pending } from './flushes.ts'
import type { Outage } from './outage.ts'

/** A run that has something to write. */
export interface CheckpointSource {
  /** Null: it has nothing to write any more. */
  takeCheckpoint(): CheckpointRequest | null
  checkpointAnswered(answer: CheckpointAnswer): void
  checkpointGivenUp(error: Error): void
}

class PendingCheckpoint implements Pending<CheckpointAnswer> {
  readonly #source: CheckpointSource
  #request: CheckpointRequest | null = null

  constructor(source: CheckpointSource) {
    this.#source = source
  }

  seal(): boolean {
    this.#request ??= this.#source.takeCheckpoint()
    return this.#request !== null
  }

  get request(): CheckpointRequest {
    return this.#request as CheckpointRequest
  }

  answered(answer: CheckpointAnswer): void {
    this.#source.checkpointAnswered(answer)
  }

  gaveUp(error: Error): void {
    this.#source.checkpointGivenUp(error)
  }
}

export interface CheckpointsContext {
  readonly timers: Timers
  readonly outage: Outage
  readonly over: AbortSignal
  checkpoint(requests: readonly CheckpointRequest[], token: string): Promise<Answers<CheckpointAnswer>>
}

export class Checkpoints {
  readonly #flushes: Flushes<PendingCheckpoint, CheckpointAnswer>

  constructor({ checkpoint, ...context }: CheckpointsContext) {
    this.#flushes = new Flushes<PendingCheckpoint, CheckpointAnswer>({
      ...context,
      send: (pending, token) =>
        checkpoint(
          pending.map(({ request }) => request),
          token,
        ),
      weigh: ({ request }) => checkpointWeight(request),
      seal: (pending) => pending.seal(),
      stopped: stoppedWaiting,
    })
  }

  /** Asks the source in the next turn of the event loop, or when the call that is in flight has been answered. */
  add(source: CheckpointSource): void {
    this.#flushes.add(new PendingCheckpoint(source))
  }
}

function stoppedWaiting(): HoldfastError {
  return new HoldfastError(
    'CLOSED',
    'The worker stopped before the store had answered the checkpoint. The lease runs out, and the job is rescued.',
  )
}
