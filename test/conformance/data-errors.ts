// A request whose values the store's own tables refuse, by a constraint or a trigger of an operator, fails alone.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { heard, readJob, rejects } from './expect.ts'
import { type Dialect, type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

export function dataErrorTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  if (!dialect) return
  describe('a settlement that the database refuses', () => settleTests(withSql(inWorld), dialect))
  describe('a request that the database refuses', () => requestTests(withSql(inWorld), dialect))
}

function requestTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const [kind, options] of [
    ['plain', {}],
    ['with a key', { dedup: { key: 'k' } }],
  ] as const) {
    test(
      `of enqueues that are sent together, one (${kind}) fails alone, with its own typed error`,
      inSql(async ({ holdfast, sql }) => {
        const refuses = dialect.refusesForbidden(sql.schema, 'payload')
        const mail = holdfast.queue('mail')
        await mail.enqueue('opens the queue')
        await sql.query(refuses.make)
        try {
          const payloads = ['a', 'b', 'forbidden', 'c', 'd']
          const enqueued = await Promise.allSettled(
            payloads.map((payload) => mail.enqueue(payload, payload === 'forbidden' ? options : {})),
          )
          assert.deepEqual(
            enqueued.map(({ status }) => status),
            ['fulfilled', 'fulfilled', 'rejected', 'fulfilled', 'fulfilled'],
          )
          const reason: unknown = (enqueued[2] as PromiseRejectedResult).reason
          await rejects(Promise.reject(reason), 'INVALID_OPTION')
          assert.match(String(reason), /not_allowed/)
          await rejects(mail.enqueue('forbidden', options), 'INVALID_OPTION')
          const leases = await holdfast.claim(['mail'], { max: 10 })
          assert.deepEqual(
            leases.map(({ job }) => job.payload),
            ['opens the queue', 'a', 'b', 'c', 'd'],
          )
        } finally {
          await sql.query(refuses.drop)
        }
      }),
    )
  }

  test(
    'of key-value writes that are sent together, one fails alone, with its own typed error',
    inSql(async ({ holdfast, sql }) => {
      const refuses = dialect.refusesForbidden(sql.schema, 'entry')
      await sql.query(refuses.make)
      try {
        const values = [1, 2, 'forbidden', 3]
        const written = await Promise.allSettled(values.map((value, i) => holdfast.kv.put(`k${i}`, value)))
        assert.deepEqual(
          written.map(({ status }) => status),
          ['fulfilled', 'fulfilled', 'rejected', 'fulfilled'],
        )
        await rejects(Promise.reject((written[2] as PromiseRejectedResult).reason), 'INVALID_OPTION')
        const entries = await Promise.all(values.map((_, i) => holdfast.kv.get(`k${i}`)))
        assert.deepEqual(
          entries.map((entry) => entry?.value),
          [1, 2, undefined, 3],
        )
      } finally {
        await sql.query(refuses.drop)
      }
    }),
  )

  test(
    'a reprioritise, a change and a requeue that are refused name their job, and those beside them are carried out',
    inSql(async ({ holdfast, sql }) => {
      const refuses = dialect.refusesForbidden(sql.schema, 'changed job')
      const payloads = ['a', 'forbidden', 'b'].map((payload) => ({ payload }))
      const waiting = await holdfast.queue('mail').enqueueMany(payloads)
      const dead = await holdfast.queue('dead', { attempts: 1 }).enqueueMany(payloads)
      for (const lease of await holdfast.claim(['dead'], { max: 3 })) await lease.dead(new Error('no'))
      await sql.query(refuses.make)
      try {
        for (const [jobs, verb] of [
          [waiting, (id: string) => holdfast.reprioritise(id, 1)],
          [waiting, (id: string) => holdfast.change(id, { headers: { a: 'b' }, labels: { a: 'b' } })],
          [dead, (id: string) => holdfast.requeue(id)],
        ] as const) {
          const made = await Promise.allSettled(jobs.map(({ id }) => verb(id)))
          assert.deepEqual(
            made.map(({ status }) => status),
            ['fulfilled', 'rejected', 'fulfilled'],
          )
          const reason: unknown = (made[1] as PromiseRejectedResult).reason
          const error = await rejects(Promise.reject(reason), 'INVALID_OPTION', { id: jobs[1]?.id })
          assert.match(error.message, /not_allowed/)
        }
      } finally {
        await sql.query(refuses.drop)
      }
    }),
  )

  test(
    'a rescue whose rows are refused is put off; the sweep rescues and promotes everything else, and it is rescued later',
    inSql(async ({ holdfast, sql, clock }) => {
      const refuses = dialect.refusesForbidden(sql.schema, 'payload')
      const mail = holdfast.queue('mail', { attempts: 1, onDead: { queue: 'deaths' } })
      const enqueued = await mail.enqueueMany(['a', 'forbidden', 'b'].map((payload) => ({ payload })))
      await holdfast.queue('later').enqueue(1, { delay: 50 })
      await holdfast.queue('deaths').enqueue('opens the queue')
      assert.equal((await holdfast.claim(['mail'], { max: 3, lease: 1_000 })).length, 3)
      await clock.advance(2_000)
      await sql.query(refuses.make)
      const states = () => Promise.all(enqueued.map(async ({ id }) => (await readJob(holdfast, id)).state))
      try {
        const { rescued, promoted } = await holdfast.sweep()
        assert.deepEqual([rescued, promoted], [2, 1])
        assert.deepEqual(await states(), ['dead', 'running', 'dead'])
        assert.equal((await holdfast.sweep()).rescued, 0)
      } finally {
        await sql.query(refuses.drop)
      }
      await clock.advance(10_000)
      assert.equal((await holdfast.sweep()).rescued, 1)
      assert.deepEqual(await states(), ['dead', 'dead', 'dead'])
      assert.equal((await holdfast.stats('deaths')).ready, 4)
    }),
  )
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
