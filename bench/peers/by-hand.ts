// Two loops that claim and settle by 500, for queues that allow it: no worker runtime in between.

import { batch, loops } from '../contender.ts'
import { pause } from '../load.ts'
import { type Handler, orderOf, type PeerPayload, type Working } from './peer.ts'

export interface Claimed {
  readonly jobs: readonly PeerPayload[]
  settle(): Promise<unknown>
}

export function byHand(claim: (max: number, loop: number) => Promise<Claimed>, handler: Handler): Working {
  let isStopping = false
  const work = async (loop: number) => {
    while (!isStopping) {
      const { jobs, settle } = await claim(batch, loop)
      for (const job of jobs) void handler(orderOf(job), job)
      await (jobs.length > 0 ? settle() : pause(1))
    }
  }
  const working = Promise.all(Array.from({ length: loops }, (_, loop) => work(loop)))
  return {
    stop: async () => {
      isStopping = true
      await working
    },
  }
}
