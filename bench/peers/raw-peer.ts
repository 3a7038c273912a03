// The raw queues of raw-postgres.ts, drained by two loops that claim and settle by 500: the most that a server gives to
// hand-written statements that do nothing else.

import { Group } from '../../src/client/group.ts'
import { type ContenderName, openContender } from '../postgres-contenders.ts'
import { byHand } from './by-hand.ts'
import { numbered, type Peer, type Place } from './peer.ts'

export async function openRawPeer({ postgres: url }: Place, name: ContenderName): Promise<Peer> {
  const contender = await openContender(url, name)
  const claim = async (max: number, loop: number) => {
    const { ids, settle } = await contender.claim(loop, max)
    const jobs = ids.map((id) => numbered(Number.parseInt(id.slice(-12), 16))) // as `makeIds` makes them
    return { jobs, settle }
  }
  // As in Holdfast: calls that are made at the same moment are one insert. What remains is the round trip and the commit.
  const singles = new Group<number, void>({
    flush: async (calls) => {
      await contender.enqueue(calls.length)
      return calls.map(() => undefined)
    },
    weigh: () => 1,
    weightMax: 1_000,
  })
  return {
    enqueue: () => singles.add(1),
    enqueueMany: (jobs) => contender.enqueue(jobs.length),
    work: async (handler) => byHand(claim, handler),
    contents: () => contender.contents(),
    [Symbol.asyncDispose]: () => contender[Symbol.asyncDispose](),
  }
}
