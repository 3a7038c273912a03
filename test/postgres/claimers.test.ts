// Many processes claim at once while others commit: no job is held twice, and none is missing at the end.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { type Hand, inHand, useDatabase } from './hand.ts'

useDatabase()

const claimerCount = 8
const producerCount = 6
const roundsPerProducer = 25

/** Enqueues in transactions of its own, which stay open for a while, and of which every fifth is rolled back. */
async function produce(hand: Hand, producer: number, committed: Set<string>): Promise<void> {
  const tx = await hand.begin('select')
  for (let round = 0; round < roundsPerProducer; round++) {
    await tx.run('begin')
    const ids = [await tx.enqueue(`q${round % 3}`, [producer, round, 0])]
    await delay((producer * 7 + round * 3) % 12)
    ids.push(await tx.enqueue(`q${(round + producer) % 3}`, [producer, round, 1], { priority: round % 2 ? 4 : 6 }))
    await tx.run(round % 5 === 4 ? 'rollback' : 'commit')
    if (round % 5 !== 4) for (const id of ids) committed.add(id)
  }
}

async function consume(holdfast: Holdfast, max: number, isOver: () => boolean): Promise<string[]> {
  const taken: string[] = []
  for (;;) {
    const wasOver = isOver()
    const leases = await holdfast.claim(['q0', 'q1', 'q2'], { max })
    taken.push(...leases.map(({ job }) => job.id))
    await Promise.all(leases.map((lease) => lease.done()))
    if (wasOver && leases.length === 0) return taken
  }
}

test(
  'eight clients that claim while six commit take every job once',
  inHand(async (hand) => {
    const clients: Holdfast[] = []
    for (let i = 0; i < claimerCount; i++) {
      const client = await hand.another({ max: 3 })
      await client.sweep()
      clients.push(client)
    }
    const committed = new Set<string>()
    const producers = Array.from({ length: producerCount }, (_, i) => produce(hand, i, committed))
    let isOver = false
    const produced = Promise.all(producers).then(() => {
      isOver = true
    })
    const taken = await Promise.all(clients.map((client, i) => consume(client, 1 + i, () => isOver)))
    await produced
    const all = taken.flat()
    assert.equal(new Set(all).size, all.length, 'no job was taken twice')
    assert.deepEqual(all.toSorted(), [...committed].sort())
    assert.equal((await hand.holdfast.stats()).done, committed.size)
  }),
)
