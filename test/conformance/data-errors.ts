// A settlement whose values the store's own tables refuse fails alone.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { heard, readJob, rejects } from './expect.ts'
import { type Dialect, type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

export function dataErrorTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  if (dialect) describe('a settlement that the database refuses', () => settleTests(withSql(inWorld), dialect))
}

function settleTests(inSql: InSqlWorld, dialect: Dialect): void {
  test(
    'fails the attempt of its own job in a worker; the jobs beside it and after it are settled',
    inSql(async ({ holdfast, sql }) => {
      const refuses = dialect.refusesSeven(sql.schema)
      await sql.query(refuses.make)
      try {
        const payloads = [1, 2, 7, 3, 4]
        const enqueued = await holdfast.queue('mail').enqueueMany(payloads.map((payload) => ({ payload })))
        const done = heard(holdfast, 'job.done', 4)
        const failed = heard(holdfast, 'settle.failed')
        const retried = heard(holdfast, 'job.retrying')
        const worker = holdfast.work('mail', async ({ payload }) => payload)
        await done
        const bad = enqueued[2]?.id as string
        const [{ error, id } = assert.fail()] = await failed
        assert.deepEqual([id, (error as { code?: string }).code], [bad, 'INVALID_OPTION'])
        assert.match(error.message, /no_seven/)
        await retried
        assert.equal((await readJob(holdfast, bad)).state, 'scheduled')
        const after = heard(holdfast, 'job.done')
        await holdfast.queue('mail').enqueue(5)
        await after
        await worker.stop()
      } finally {
        await sql.query(refuses.drop)
      }
    }),
  )

  for (const [what, effects] of [
    ['plainly', undefined],
    ['with effects', { put: [{ key: 'k', value: 1 }] }],
  ] as const) {
    test(
      `gets its own typed failure from a lease, settled ${what}; the leases beside it are settled`,
      inSql(async ({ holdfast, sql }) => {
        const refuses = dialect.refusesSeven(sql.schema)
        await holdfast.queue('mail').enqueueMany([1, 2, 7, 3].map((payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 4 })
        await sql.query(refuses.make)
        try {
          const settled = await Promise.allSettled(leases.map((lease) => lease.done(lease.job.payload, effects)))
          assert.deepEqual(
            settled.map(({ status }) => status),
            ['fulfilled', 'fulfilled', 'rejected', 'fulfilled'],
          )
          const bad = leases[2] ?? assert.fail()
          const facts = { id: bad.job.id }
          await rejects(Promise.reject((settled[2] as PromiseRejectedResult).reason), 'INVALID_OPTION', facts)
          assert.equal((await readJob(holdfast, bad.job.id)).state, 'running')
          assert.equal((await bad.done(8)).state, 'done')
        } finally {
          await sql.query(refuses.drop)
        }
      }),
    )
  }
}
