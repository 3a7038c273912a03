// The raw queues of raw-postgres.ts, worked by two loops that claim and settle by 500: what a server gives at best to hand-
// written statements that do nothing else.

import { batch, type Contender, loops } from '../contender.ts'
import { pause } from '../load.ts'
import { type ContenderName, openContender } from '../postgres-contenders.ts'
import type { Handler, Peer, Place, Working } from './peer.ts'
import { numbered } from './peer.ts'

export async function openRawPeer({ postgres: url }: Place, name: ContenderName): Promise<Peer> {
  const contender = await openContender(url, name)
  return {
    enqueue: () => contender.enqueue(1),
    enqueueMany: (jobs) => contender.enqueue(jobs.length),
    work: async (handler) => workOn(contender, handler),
    contents: () => contender.contents(),
    [Symbol.asyncDispose]: () => contender[Symbol.asyncDispose](),
  }
}

function workOn(contender: Contender, handler: Handler): Working {
  let isStopping = false
  const work = async (loop: number) => {
    while (!isStopping) {
      const taken = await contender.claim(loop, batch)
      if (taken.ids.length === 0) await pause(1)
      for (const id of taken.ids) {
        const order = Number.parseInt(id.slice(-12), 16) // as `makeIds` makes them
        void handler(order, numbered(order))
      }
      if (taken.ids.length > 0) await taken.settle()
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
