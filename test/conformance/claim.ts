import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, heard, minute, readJob, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function claimTests(inWorld: InWorld): void {
  describe('claim', () => {
    test(
      'a claim takes at most `max` jobs, one by default, and none if none is ready',
      inWorld(async ({ holdfast }) => {
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 7 }, (_, n) => ({ payload: n })))
        assert.equal((await holdfast.claim(['mail'])).length, 1)
        assert.equal((await holdfast.claim(['mail'], { max: 4 })).length, 4)
        assert.equal((await holdfast.queue('mail').claim({ max: 4 })).length, 2)
        assert.deepEqual(await holdfast.claim(['mail'], { max: 4 }), [])
      }),
    )

    test(
      'a claimed job is running, held by its worker until the lease ends',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail', { worker: 'w-1', lease: '5m' })
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.worker, job.attempts], ['running', 'w-1', 1])
        assert.deepEqual([job.startedAt?.getTime(), job.expiresAt?.getTime()], [clock.now(), clock.now() + 5 * minute])
        assert.deepEqual([lease.job.id, lease.expiresAt], [id, job.expiresAt])
        assert.deepEqual(job.history, [])
      }),
    )

    test(
      'a lease lasts 30 s unless the queue or the claim sets it; of several queues the shortest counts',
      inWorld(async ({ holdfast, clock }) => {
        const long = defineQueue('long', { lease: '10m' })
        const short = defineQueue('short', { lease: '5s' })
        const leaseMs = async (queues: Parameters<typeof holdfast.claim>[0], lease?: '1s') => {
          const [taken] = await holdfast.claim(queues, lease === undefined ? {} : { lease })
          await taken?.release()
          return (taken?.expiresAt.getTime() ?? 0) - clock.now()
        }
        for (const queue of ['mail', 'long', 'short']) await holdfast.queue(queue).enqueue(1)
        assert.equal(await leaseMs(['mail']), 30_000)
        assert.equal(await leaseMs('*'), 30_000)
        assert.equal(await leaseMs([long]), 600_000)
        assert.equal(await leaseMs([long, short]), 5_000)
        assert.equal(await leaseMs([long], '1s'), 1_000)
      }),
    )

    test(
      'every claim has its own fence, too long to be guessed',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const fences = new Set<string>()
        for (let n = 0; n < 50; n++) {
          const lease = await claimOne(holdfast, 'mail')
          fences.add(lease.fence)
          assert.ok(lease.fence.length >= 22, 'at least 128 bits')
          await lease.release()
        }
        assert.equal(fences.size, 50)
      }),
    )

    test(
      'many workers that claim at once never get the same job, and together they get all',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another(), await another()]
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 300 }, (_, payload) => ({ payload })))
        const taken: string[] = []
        await Promise.all(
          clients.flatMap((client) =>
            Array.from({ length: 4 }, async (_, n) => {
              for (;;) {
                const leases = await client.claim(['mail'], { max: 1 + n * 3 })
                if (leases.length === 0) return
                taken.push(...leases.map(({ job }) => job.id))
              }
            }),
          ),
        )
        assert.equal(taken.length, 300)
        assert.equal(new Set(taken).size, 300)
        assert.equal((await holdfast.stats('mail')).running, 300)
      }),
    )

    test(
      'a running job is not claimed again while its lease lasts',
      inWorld(async ({ holdfast, another, clock }) => {
        await holdfast.queue('mail').enqueue(1)
        await claimOne(holdfast, 'mail', { lease: '1m' })
        await clock.advance(minute - 1)
        assert.equal((await holdfast.sweep()).rescued, 0)
        assert.deepEqual(await (await another()).claim(['mail']), [])
      }),
    )
  })

  describe('payloads that do not match their schema', () => {
    const checked = defineQueue('mail', { payload: z.object({ to: z.string().transform((to) => to.trim()) }) })

    test(
      'the worker gets the output of the schema, and the stored payload is unchanged',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue(checked).enqueue({ to: ' ada ' })
        const [lease] = await holdfast.claim([checked])
        assert.deepEqual(lease?.job.payload, { to: 'ada' })
        assert.deepEqual((await readJob(holdfast, id)).payload, { to: ' ada ' })
      }),
    )

    test(
      'a payload that fails its schema kills that job alone, not those claimed with it',
      inWorld(async ({ holdfast }) => {
        const plain = holdfast.queue('mail')
        const good = await plain.enqueue({ to: 'ada' })
        const bad = await plain.enqueue({ to: 5 })
        const fine = await plain.enqueue({ to: 'bob' })
        const leases = await holdfast.claim([checked], { max: 10 })
        assert.deepEqual(
          leases.map(({ job }) => job.id),
          [good.id, fine.id],
        )
        const { state, error, attempts, history } = await readJob(holdfast, bad.id)
        assert.deepEqual([state, error?.code, attempts], ['dead', 'INVALID_PAYLOAD', 1])
        assert.deepEqual([history.length, history[0]?.ending], [1, 'failed'])
      }),
    )

    for (const fails of [() => Promise.reject(new Error('database away')), thrower]) {
      test(
        `a schema that ${fails === thrower ? 'throws' : 'rejects'} costs the job an attempt, and a later one runs it`,
        inWorld(async ({ holdfast, clock }) => {
          let isAway = true
          const validate = (value: unknown) => (isAway ? fails() : { value })
          const payload = { '~standard': { version: 1, vendor: 'test', validate } } as const
          const asking = defineQueue('mail', { payload, attempts: 3, backoff: { base: '1m', jitter: 0 } })
          const { id } = await holdfast.queue('mail').enqueue({ to: 'ada' })
          assert.deepEqual(await holdfast.claim([asking]), [])
          const { state, error, attempts, history } = await readJob(holdfast, id)
          assert.deepEqual([state, error, attempts], ['scheduled', null, 1])
          assert.match(history[0]?.error?.message ?? '', /database away/)
          await clock.advance(minute)
          await holdfast.sweep()
          const failed = heard(holdfast, 'job.retrying')
          await using worker = holdfast.work(asking, () => 'ran')
          await failed
          isAway = false
          await clock.advance(2 * minute)
          await holdfast.sweep()
          assert.equal(await holdfast.result(id), 'ran')
          await worker.stop()
        }),
      )
    }

    test(
      'a claim that finds only bad payloads continues to the good ones after them',
      inWorld(async ({ holdfast }) => {
        const plain = holdfast.queue('mail')
        const bad = await plain.enqueueMany([{ payload: 1 }, { payload: null }, { payload: {} }])
        await plain.enqueue({ to: 'ada' })
        const [lease] = await holdfast.claim([checked])
        assert.deepEqual(lease?.job.payload, { to: 'ada' })
        for (const { id } of bad) assert.equal(await stateOf(holdfast, id), 'dead')
      }),
    )

    test(
      'a schema that throws costs only its job an attempt, and one that refuses late kills only its job',
      inWorld(async ({ holdfast }) => {
        const throwing = z.number().transform((n) => {
          if (n === 1) throw new TypeError('broken schema')
          return n
        })
        const late = z.number().refine(async (n) => n !== 2)
        for (const [name, payload, bad, state] of [
          ['throwing', throwing, 1, 'scheduled'],
          ['late', late, 2, 'dead'],
        ] as const) {
          const { id } = await holdfast.queue(name).enqueue(bad)
          await holdfast.queue(name).enqueue(3)
          const leases = await holdfast.claim([defineQueue(name, { payload })], { max: 2 })
          assert.deepEqual(
            leases.map(({ job }) => job.payload),
            [3],
          )
          assert.equal(await stateOf(holdfast, id), state)
        }
      }),
    )
  })
}

function thrower(): never {
  throw new Error('database away')
}
