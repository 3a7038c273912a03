// Rows that another program has overwritten. Only the job they belong to is affected, and as little as possible.
import assert from 'node:assert/strict'
import { describe, type TestContext, test } from 'node:test'
import { allJobs, claimOne, deadJob, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld, Overwrite, StoreUnderTest, World } from './world.ts'

/** Text that is not JSON, and JSON of every wrong shape. */
const damaged: readonly string[] = [
  ...[
    '',
    '{oops',
    'null',
    'true',
    '5',
    '"text"',
    '{}',
    '[]',
    '[null]',
    '[5]',
    '["text"]',
    '[[]]',
    '[{}]',
    '{"message":5}',
  ],
  ...['[{"put":5}]', '[{"put":[null],"delete":[],"sql":[],"enqueue":[]}]'],
  '[{"put":[],"delete":[5],"sql":[],"enqueue":[]}]',
  '[{"put":[],"delete":[],"sql":[],"enqueue":[{}]}]',
  '[{"put":[],"delete":[],"sql":[],"enqueue":[{"id":"x","queue":"a b","payload":5}]}]',
  '[{"attempt":"one","worker":5,"startedAt":"x","endedAt":null,"ending":5,"error":5}]',
  '[{"as":"changed","by":5,"at":"x","what":"payload"}]',
  '[{"n":1},5]',
  '\u001e,\u001e',
]
const damagedPayloads = damaged.filter((text) => !isJson(text))

export function damageTests(inWorld: InWorld, store: StoreUnderTest): void {
  if (!store.canBeDamaged) return // the test cannot write to it directly
  const inDamagedWorld = (show: (world: World & { readonly overwrite: Overwrite }, t: TestContext) => Promise<void>) =>
    inWorld(async (world, t) => {
      const { overwrite } = world
      assert.ok(overwrite, 'a store that can be damaged provides `overwrite`')
      await show({ ...world, overwrite }, t)
    })

  describe('rows that were damaged', () => {
    test(
      'a payload that is not JSON makes its job dead when it is claimed, with a death notice, and affects no other job',
      inDamagedWorld(async ({ holdfast, overwrite }) => {
        const mail = holdfast.queue('mail', { onDead: { queue: 'graves' } })
        const jobs = [...damagedPayloads, 'unharmed'].map((payload) => ({ payload }))
        const ids = (await mail.enqueueMany(jobs)).map(({ id }) => id)
        for (const [i, text] of damagedPayloads.entries()) await overwrite('payload', ids[i] as string, text)
        for (const [i, text] of damagedPayloads.entries()) {
          assert.equal((await readJob(holdfast, ids[i] as string)).payload, text, 'shown as it is')
        }
        const leases = await mail.claim({ max: 100 })
        assert.deepEqual(
          leases.map(({ job }) => job.payload),
          ['unharmed'],
        )
        for (const [i, text] of damagedPayloads.entries()) {
          const { state, error, payload } = await readJob(holdfast, ids[i] as string)
          assert.deepEqual([state, payload], ['dead', text])
          assert.match(error?.message ?? '', /payload.*JSON/i, 'says what is wrong')
        }
        const notices = await holdfast.claim(['graves'], { max: 100 })
        assert.deepEqual(
          notices.map(({ job }) => (job.payload as { payload: unknown }).payload).sort(),
          [...damagedPayloads].sort(),
        )
      }),
    )

    test(
      'headers that are not JSON read as none: the job runs, and can be woken',
      inDamagedWorld(async ({ holdfast, overwrite }) => {
        for (const text of damaged) {
          const { id } = await holdfast.queue('mail').enqueue(1, { headers: { a: 'b' }, delay: '1h' })
          await overwrite('headers', id, text)
          const read = await readJob(holdfast, id)
          assert.ok(isStrings(read.headers), `${text} reads as headers ${JSON.stringify(read.headers)}`)
          assert.equal(await holdfast.wake(id, { woken: true }), 'ready')
          const lease = await claimOne(holdfast, 'mail')
          assert.ok(isStrings(lease.job.headers))
          assert.deepEqual(lease.job.wake, { woken: true })
          assert.equal((await lease.done()).state, 'done')
        }
      }),
    )

    test(
      'a damaged part of a waiting job can be changed, and what was damaged is mended or reads as none',
      inDamagedWorld(async ({ holdfast, overwrite }) => {
        const mail = holdfast.queue('mail', { limit: { key: 'to', concurrency: 1 }, labels: { to: 'to' } })
        for (const part of ['payload', 'headers', 'past'] as const) {
          for (const text of damaged) {
            const { id } = await mail.enqueue({ to: 'ada' })
            await overwrite(part, id, text)
            await holdfast.change(id, { attempts: 9 }, { by: 'ada' })
            await holdfast.change(id, { payload: { to: 'bob', text }, headers: { a: 'b' } }, { by: 'ada' })
            const { payload, headers, maxAttempts, changes, history } = await readJob(holdfast, id)
            assert.deepEqual([payload, headers, maxAttempts], [{ to: 'bob', text }, { a: 'b' }, 9])
            assert.deepEqual([changes.length, history.length], [2, 0], text)
            await holdfast.delete(id)
          }
        }
      }),
    )

    test(
      'a history from before changes by hand were kept reads as it did, and goes on',
      inDamagedWorld(async ({ holdfast, overwrite }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1h' })
        const attempt = { attempt: 1, worker: 'w1', startedAt: 5, endedAt: 7, ending: 'failed' }
        await overwrite('past', id, JSON.stringify([attempt, { ...attempt, attempt: 2, worker: 'w2' }]))
        const workers = async () => (await readJob(holdfast, id)).history.map(({ worker }) => worker)
        assert.deepEqual([await workers(), (await readJob(holdfast, id)).changes], [['w1', 'w2'], []])
        await holdfast.reprioritise(id, 0, { by: 'ada' })
        assert.deepEqual([await workers(), (await readJob(holdfast, id)).changes.length], [['w1', 'w2'], 1])
        const [found] = (await holdfast.jobs({ worker: 'w2' })).jobs
        assert.equal(found?.id, id)
      }),
    )

    for (const [part, state] of [
      ['past', 'ready'],
      ['cancel', 'cancelled'],
    ] as const) {
      test(
        `a damaged ${part} does not keep its job or others from being rescued`,
        inDamagedWorld(async ({ holdfast, overwrite, clock }) => {
          const ids: string[] = []
          for (const text of damaged) {
            const { id } = await holdfast.queue('mail').enqueue(1)
            ids.push(id)
            await claimOne(holdfast, 'mail', { lease: '1s' })
            await overwrite(part, id, text)
            assert.ok(Array.isArray((await readJob(holdfast, id)).history))
          }
          await holdfast.queue('post').enqueue(1)
          await claimOne(holdfast, 'post', { lease: '1s' })
          await clock.advance(minute)
          assert.equal((await holdfast.sweep()).rescued, damaged.length + 1)
          for (const id of ids) assert.equal(await stateOf(holdfast, id), state)
          assert.equal((await holdfast.stats('post')).ready, 1)
          for (const { history } of await allJobs(holdfast)) {
            for (const attempt of history) assert.ok(!Number.isNaN(attempt.startedAt.getTime()), 'a readable history')
          }
        }),
      )

      test(
        `a job whose ${part} was damaged can be settled in every way`,
        inDamagedWorld(async ({ holdfast, overwrite }) => {
          for (const text of damaged) {
            for (const settle of ['done', 'release', 'retry', 'dead'] as const) {
              const { id } = await holdfast.queue(settle).enqueue(1)
              const lease = await claimOne(holdfast, settle)
              await overwrite(part, id, text)
              await lease.renew()
              await (settle === 'retry'
                ? lease.retry(new Error('no'), { delay: '1h' })
                : lease[settle](undefined as never))
              const { state, history } = await readJob(holdfast, id)
              assert.equal(history.at(-1)?.attempt, 1, `${text}, ${settle}`)
              if (state === 'ready') await (await claimOne(holdfast, settle)).done()
            }
          }
        }),
      )
    }

    test(
      'an error that is not one is shown as it is, and its job can be found, reported and requeued',
      inDamagedWorld(async ({ holdfast, overwrite }) => {
        for (const text of damaged) {
          const id = await deadJob(holdfast, 'mail')
          await overwrite('error', id, text)
          const { error, history } = await readJob(holdfast, id)
          assert.equal(error?.message, text)
          assert.equal(history.at(-1)?.error?.message, text)
          await rejects(holdfast.result(id), 'JOB_DEAD')
          if (text === '' || isJson(text)) await holdfast.requeue(id)
          else assert.equal((await holdfast.requeueAll({ error: text.slice(0, 20) })).changed, 1, text)
          const lease = await claimOne(holdfast, 'mail')
          assert.equal(lease.job.id, id)
          await lease.done()
        }
      }),
    )

    test(
      'a result or value that is not JSON is read as its text, and the ones next to it are unaffected',
      inDamagedWorld(async ({ holdfast, overwrite }) => {
        await holdfast.kv.put('a', 1)
        await holdfast.kv.put('c', 3)
        for (const text of damagedPayloads) {
          const { id } = await holdfast.queue('mail').enqueue(1)
          await (await claimOne(holdfast, 'mail')).done({ fine: true })
          await overwrite('result', id, text)
          assert.equal((await readJob(holdfast, id)).result, text)
          assert.equal(await holdfast.result(id), text)
          await holdfast.kv.put('b', 2)
          await overwrite('value', 'b', text)
          assert.equal((await holdfast.kv.get('b'))?.value, text)
          const values = await Array.fromAsync(holdfast.kv.scan(''), ({ value }) => value)
          assert.deepEqual(values, [1, text, 3])
        }
      }),
    )
  })
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

function isStrings(headers: unknown): boolean {
  const isObject = typeof headers === 'object' && headers !== null && !Array.isArray(headers)
  return isObject && Object.values(headers).every((value) => typeof value === 'string')
}
