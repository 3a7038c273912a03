// A claim is a transaction of its own, in read committed. Anything else is refused, because there jobs would be skipped or
// claimed twice. The store sets this itself, whatever the defaults of sessions are.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { Client } from 'pg'
import { claimOne, deadJob, stateOf } from '../conformance/expect.ts'
import { testDatabase } from '../support/postgres.ts'
import { ownTransaction, readCommitted } from './rules.ts'
import { inWorld, useDatabase, World } from './world.ts'

useDatabase()

const claimMail = `select payloads from holdfast.claim($1, 'worker', 60000, $2, '{mail}', '{}', null)`

test(
  'a claim inside a transaction that has written is refused',
  inWorld(async (world) => {
    const tx = await world.begin()
    await tx.enqueue('mail', 'own')
    await assert.rejects(tx.run(claimMail, [randomUUID(), 10]), { code: 'HF002' })
    await tx.rollback()
  }),
)

test(
  'a second claim in one transaction is refused: the first has written',
  inWorld(async (world) => {
    await world.enqueue('mail', 'a')
    const tx = await world.begin()
    assert.equal((await tx.run(claimMail, [randomUUID(), 1])).length, 1)
    await assert.rejects(tx.run(claimMail, [randomUUID(), 1]), { code: 'HF002' })
    await tx.rollback()
    assert.deepEqual(await world.claim(), ['a'])
  }),
)

test(
  'if it is not refused, a claim inside a transaction that has written skips the jobs of that transaction',
  inWorld(
    async (world) => {
      const tx = await world.begin()
      await tx.enqueue('other', 'written')
      await world.enqueue('mail', 'stranger')
      assert.deepEqual(await tx.run(claimMail, [randomUUID(), 10]), [{ payloads: '"stranger"' }])
      await tx.enqueue('mail', 'own')
      await tx.commit()
      assert.deepEqual(await world.claim(), [])
    },
    { without: [ownTransaction] },
  ),
)

for (const level of ['repeatable read', 'serializable']) {
  test(
    `a claim in ${level} is refused`,
    inWorld(async (world) => {
      const tx = await world.begin(`begin isolation level ${level}`)
      await assert.rejects(tx.run(claimMail, [randomUUID(), 10]), { code: 'HF001' })
    }),
  )

  test(
    `if it is not refused, a claim in ${level} still takes no leased job`,
    inWorld(
      async (world) => {
        await world.enqueue('mail', 'a')
        const tx = await world.begin(`begin isolation level ${level}`)
        await tx.run('select from holdfast.job')
        assert.deepEqual(await world.claim(), ['a'])
        await assert.rejects(tx.run(claimMail, [randomUUID(), 10]), { code: '40001' })
      },
      { without: [readCommitted] },
    ),
  )

  test(`if sessions start in ${level}, the store works normally`, async () => {
    await using database = await testDatabase()
    const client = new Client({ connectionString: database.url })
    await client.connect()
    await client.query(`alter database ${database.name} set default_transaction_isolation = '${level}'`)
    await client.end()
    await using world = await World.open(database.url, 'holdfast')
    const other = await world.another()
    await world.holdfast.sweep()
    await other.sweep()
    const late = await world.begin()
    assert.deepEqual(await late.run('show transaction_isolation'), [{ transaction_isolation: level }])
    await late.enqueue('mail', 'late')
    for (const payload of ['a', 'b', 'c', 'd']) await world.enqueue('mail', payload, { dedup: { key: payload } })
    const [one, two] = await Promise.all([claimOne(world.holdfast, 'mail'), claimOne(other, 'mail')])
    assert.deepEqual([one.job.payload, two.job.payload].sort(), ['a', 'b'])
    await Promise.all([one.done(), two.release()])
    await late.commit()
    const left = await world.claim('mail', 10)
    assert.deepEqual([...left].sort(), ['c', 'd', 'late', two.job.payload].sort())
    const dead = await deadJob(other, 'paper')
    await world.holdfast.requeue(dead)
    assert.equal(await other.cancel(dead), 'cancelled')
    assert.equal(await stateOf(world.holdfast, dead), 'cancelled')
    const version = await other.kv.put('k', 1)
    assert.equal((await world.holdfast.kv.compareAndSet('k', version, 2)).applied, true)
    await world.recount()
  })
}
