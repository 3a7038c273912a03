// Reads of finished jobs do not plan a scan of every partition each time.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { allJobs, claimOne } from '../conformance/expect.ts'
import { inWorld, useDatabase } from './world.ts'

useDatabase()

const partitions = 60
const dayMs = 86_400_000

test(
  'the plan of a page of finished jobs, of a batch or of some ids, and of one job, does not grow with the partitions',
  inWorld(async (world) => {
    const { holdfast, pool } = world
    const first = Math.floor(Date.now() / dayMs) + 30
    for (let day = first; day < first + partitions; day++)
      await world.rows(`create table holdfast.ended_3_${day} partition of holdfast.ended
        for values from (3, ${day * dayMs}) to (3, ${(day + 1) * dayMs})`)
    const { id } = await holdfast.queue('mail').enqueue(1)
    const batch = await holdfast.batch({ name: 'none' })
    await (await claimOne(holdfast, 'mail')).done()
    const sent = new Set<string>()
    pool.on('acquire', (client) => {
      if (Object.hasOwn(client, 'query')) return
      const query = client.query.bind(client) as (...args: unknown[]) => unknown
      const recorded = (...args: unknown[]) => {
        const [first] = args as readonly (string | { readonly text: string })[]
        sent.add(typeof first === 'string' ? first : String(first?.text))
        return query(...args)
      }
      client.query = recorded as never
    })
    const [job] = await allJobs(holdfast, { queue: 'mail', state: 'done' })
    assert.deepEqual(job, await holdfast.job(id))
    await holdfast.jobs({ ids: [id] })
    await holdfast.jobs({ batch: batch.id })
    const client = await world.connect()
    let explained = 0
    for (const text of sent) {
      if (!/ended|newest_of/.test(text) || !/^\s*(select|with)/.test(text)) continue
      const { rows } = await client.query(`explain (generic_plan) ${text}`)
      assert.ok(rows.length < partitions, `${rows.length} lines of plan for ${text}`)
      explained += 1
    }
    assert.equal(explained, 4)
  }),
)
