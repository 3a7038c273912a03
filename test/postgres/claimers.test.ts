// Many processes claim at once while other transactions commit: no job is leased twice, and none is missing at the end.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { allJobs } from '../conformance/expect.ts'
import { inWorld, useDatabase, type World } from './world.ts'

useDatabase()

const claimerCount = 8
const producerCount = 6
const roundsPerProducer = 25

/** Enqueues in its own transactions. They stay open for a while, and every fifth is rolled back. */
async function produce(world: World, producer: number, committed: Set<string>): Promise<void> {
  const tx = await world.begin('select')
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
  inWorld(async (world) => {
    const clients: Holdfast[] = []
    for (let i = 0; i < claimerCount; i++) {
      const client = await world.another({ max: 3 })
      await client.sweep()
      clients.push(client)
    }
    const committed = new Set<string>()
    const producers = Array.from({ length: producerCount }, (_, i) => produce(world, i, committed))
    let isOver = false
    const produced = Promise.all(producers).then(() => {
      isOver = true
    })
    const taken = await Promise.all(clients.map((client, i) => consume(client, 1 + i, () => isOver)))
    await produced
    const all = taken.flat()
    assert.equal(new Set(all).size, all.length, 'no job was taken twice')
    assert.deepEqual(all.toSorted(), [...committed].sort())
    assert.equal((await world.holdfast.stats()).done, committed.size)
  }),
)

const soloCount = 200

/** Enqueues single jobs into one lane. Some transactions stay open while others follow, and some jobs are cancelled. */
async function produceSlowly(world: World, asked: Set<string>): Promise<string[]> {
  const ids: string[] = []
  for (let n = 0; n < soloCount; n++) {
    const late = n % 9 === 4 ? await world.begin() : null
    if (late) ids.push(await late.enqueue('mail', n))
    ids.push(await world.enqueue('mail', n))
    await delay(n % 4)
    await late?.commit()
    if (n % 7 !== 3) continue
    const last = ids.at(-1) as string
    asked.add(last)
    await world.holdfast.cancel(last).catch(isOver)
  }
  return ids
}

/** The job ended before it could be cancelled. */
function isOver(error: unknown): void {
  if ((error as { code?: unknown }).code !== 'INVALID_STATE') throw error
}

/** Every fifth job is released once, and so comes before those that follow. */
async function consumeSolo(holdfast: Holdfast, isOver: () => boolean, givenBack: Set<string>): Promise<string[]> {
  const ended: string[] = []
  for (;;) {
    const wasOver = isOver()
    const leases = await holdfast.claim(['mail'], { max: 100 })
    for (const lease of leases) {
      const { id } = lease.job
      if ((lease.job.payload as number) % 5 === 0 && !givenBack.has(id)) {
        givenBack.add(id)
        await lease.release()
      } else {
        await lease.done()
        ended.push(id)
      }
    }
    if (wasOver && leases.length === 0) return ended
  }
}

test(
  'five clients on one lane, where jobs are enqueued one by one, released, committed late and cancelled, end every job once',
  inWorld(
    async (world) => {
      await world.rows('create sequence holdfast.alone')
      await world.withoutRule({
        from: 'if not (is_plain and',
        to: `perform nextval('holdfast.alone'); if not (is_plain and`,
      })
      const clients: Holdfast[] = []
      for (let i = 0; i < 5; i++) clients.push(await world.another({ max: 3 }))
      const [asked, givenBack] = [new Set<string>(), new Set<string>()]
      let isOver = false
      const produced = produceSlowly(world, asked).finally(() => {
        isOver = true
      })
      const ended = (await Promise.all(clients.map((client) => consumeSolo(client, () => isOver, givenBack)))).flat()
      const jobs = await allJobs(world.holdfast)
      const idsOf = (some: typeof jobs) => some.map(({ id }) => id).sort()
      assert.deepEqual(idsOf(jobs), (await produced).toSorted(), 'none is missing')
      assert.deepEqual(ended.toSorted(), idsOf(jobs.filter(({ state }) => state === 'done')), 'none was done twice')
      const others = jobs.filter(({ state }) => state !== 'done')
      assert.deepEqual(
        others.filter(({ id, state }) => state !== 'cancelled' || !asked.has(id)),
        [],
        'the others were cancelled, and only those that were requested',
      )
      const [used] = await world.rows('select last_value::int as n from holdfast.alone')
      assert.ok(Number(used?.['n']) > 5, `${used?.['n']} claims took the short way`)
    },
    { alone: true },
  ),
)
