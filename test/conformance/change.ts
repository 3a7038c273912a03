// Changes of waiting jobs, and what the history keeps of changes by hand.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { JobInfo } from '../../src/client/job-info.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { bounds } from '../../src/job/bounds.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { allJobs, claimOne, claimOrder, deadJob, hour, minute, queueInfo, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

interface Mail {
  readonly to?: string
  readonly region?: string
  readonly n?: number
}

const perReceiver = defineQueue<Mail>('mail', {
  limit: { key: 'to', concurrency: 1 },
  labels: { region: 'region' },
})

export function changeTests(inWorld: InWorld): void {
  describe('change', () => {
    test(
      'gives a waiting job another payload, attempts, headers and labels, and it keeps its place',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail')
        await mail.enqueue('first')
        const options = {
          attempts: 3,
          headers: { a: 'b' },
          labels: { customer: 'c1' },
          idempotencyKey: 'i',
          priority: 2,
        }
        const { id } = await mail.enqueue('second', { ...options, dedup: { key: 'd' } })
        await mail.enqueue('third', { priority: 2 })
        const before = await readJob(holdfast, id)
        const changes = { payload: { n: [2] }, attempts: 7, headers: { c: 'd' }, labels: { customer: 'c2', kind: 'x' } }
        assert.equal(await holdfast.change(id, changes), 'ready')
        const { payload, maxAttempts, headers, labels, changes: kept, ...after } = await readJob(holdfast, id)
        assert.deepEqual({ payload, attempts: maxAttempts, headers, labels }, changes)
        assert.deepEqual(after, without(before, ['payload', 'maxAttempts', 'headers', 'labels', 'changes']))
        assert.equal(kept.length, 1)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [{ n: [2] }, 'third', 'first'])
        assert.equal((await mail.enqueue('again', { dedup: { key: 'd' } })).id, id, 'its dedup key stays')
        assert.equal((await mail.enqueue('second', { idempotencyKey: 'i' })).id, id, 'as does its idempotency key')
      }),
    )

    test(
      'of a scheduled job keeps its time, and of a held one its place in the line',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue(perReceiver)
        const { id: later } = await queue.enqueue({ to: 'x', n: 1 }, { delay: '1m' })
        assert.equal(await holdfast.change(later, { payload: { to: 'x', n: 9 } }), 'scheduled')
        assert.deepEqual((await readJob(holdfast, later)).runAt, new Date(clock.now() + minute))
        for (const n of [1, 2, 3]) await queue.enqueue({ to: 'ada', n })
        const second = (await allJobs(holdfast, { state: 'held' })).find(({ payload }) => (payload as Mail).n === 2)
        assert.equal(await holdfast.change(second?.id as string, { payload: { to: 'ada', n: 20 } }), 'held')
        assert.deepEqual(await drained(holdfast), [1, 20, 3])
        await clock.advance(minute)
        await holdfast.sweep()
        assert.deepEqual(await drained(holdfast), [9])
      }),
    )

    test(
      'of a running or ended job is INVALID_STATE and changes nothing, of an unknown one JOB_NOT_FOUND',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('old', { headers: { a: 'b' } })
        const lease = await claimOne(holdfast, 'mail')
        const before = await readJob(holdfast, id)
        const changes = { payload: 'new', attempts: 9, headers: {}, labels: { a: 'b' } }
        await rejects(holdfast.change(id, changes), 'INVALID_STATE', { id, state: 'running' })
        assert.deepEqual(await readJob(holdfast, id), before)
        await lease.done()
        await rejects(holdfast.change(id, changes), 'INVALID_STATE', { id, state: 'done' })
        await rejects(holdfast.change(await deadJob(holdfast, 'mail'), changes), 'INVALID_STATE', { state: 'dead' })
        await rejects(holdfast.change(randomUUID(), changes), 'JOB_NOT_FOUND')
      }),
    )

    test(
      'that is not a change, or too large, is refused before it is sent',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('old')
        const before = await readJob(holdfast, id)
        await rejects(holdfast.change(id, {}), 'INVALID_OPTION')
        await rejects(holdfast.change(id, { priority: 1 } as object), 'INVALID_OPTION')
        await rejects(holdfast.change(id, { payload: 'x'.repeat(2 ** 20) }), 'PAYLOAD_TOO_LARGE')
        await rejects(holdfast.change(id, { payload: new Date() }), 'INVALID_PAYLOAD')
        await rejects(holdfast.change(id, { attempts: 0 }), 'INVALID_OPTION', { option: 'attempts' })
        await rejects(holdfast.change(id, { headers: { a: 'x'.repeat(20_000) } }), 'INVALID_OPTION', {
          option: 'headers',
        })
        await rejects(holdfast.change(id, { labels: { a: '' } }), 'INVALID_OPTION', { option: 'labels' })
        await rejects(holdfast.change(id, { limitKey: '' }), 'INVALID_OPTION')
        await rejects(holdfast.change(id, { attempts: 2 }, { by: 'x'.repeat(2_000) }), 'INVALID_OPTION', {
          option: 'by',
        })
        await rejects(holdfast.change('nonsense', { attempts: 2 }), 'INVALID_ID')
        assert.deepEqual(await readJob(holdfast, id), before)
      }),
    )

    test(
      'of the attempts must leave at least one, and the job dies after the last of them',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 5 })
        for (const _ of [1, 2]) await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        await rejects(holdfast.change(id, { attempts: 2 }), 'INVALID_OPTION', { id, option: 'attempts', used: 2 })
        assert.equal((await readJob(holdfast, id)).maxAttempts, 5)
        await holdfast.change(id, { attempts: 3 })
        const { state } = await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        assert.equal(state, 'dead')
      }),
    )

    test(
      'of the headers keeps the data of a wake',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1h', headers: { a: 'b' } })
        await holdfast.wake(id, { __proto__: null, answer: [42, 'é'] })
        await holdfast.change(id, { headers: { c: 'd' } })
        const { headers, wake } = await readJob(holdfast, id)
        assert.deepEqual([headers, wake], [{ c: 'd' }, { answer: [42, 'é'] }])
        await holdfast.change(id, { headers: {} })
        const { job } = await claimOne(holdfast, 'mail')
        assert.deepEqual([job.headers, job.wake], [{}, { answer: [42, 'é'] }])
      }),
    )

    test(
      'of the payload moves a job to the limit key of the new payload, and the next job gets its slot',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue(perReceiver)
        const ids: string[] = []
        for (const [to, n] of [
          ['ada', 1],
          ['ada', 2],
          ['bob', 3],
        ] as const)
          ids.push((await queue.enqueue({ to, n })).id)
        const [first, second, third] = ids as [string, string, string]
        assert.equal(await holdfast.change(first, { payload: { to: 'bob', n: 1 } }), 'held')
        assert.deepEqual(await Promise.all(ids.map((id) => stateOf(holdfast, id))), ['held', 'ready', 'ready'])
        assert.equal((await readJob(holdfast, first)).limitKey, 'bob')
        assert.equal(await holdfast.change(third, { payload: { to: 'eve', n: 3 } }), 'ready')
        assert.deepEqual(await Promise.all(ids.map((id) => stateOf(holdfast, id))), ['ready', 'ready', 'ready'])
        const leases = await holdfast.claim([perReceiver], { max: 10 })
        assert.deepEqual(leases.map(({ job }) => job.id).sort(), [first, second, third].sort())
        await queue.enqueue({ to: 'eve', n: 4 })
        assert.deepEqual(await holdfast.claim([perReceiver]), [], 'each has a slot of its new key')
        const { held } = await queueInfo(holdfast, 'mail')
        assert.equal(held, 1)
      }),
    )

    test(
      'moves a held job, too, and a scheduled one comes to its new key when it is due',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue(perReceiver)
        await queue.enqueue({ to: 'ada', n: 1 })
        const { id: held } = await queue.enqueue({ to: 'ada', n: 2 })
        const { id: later } = await queue.enqueue({ to: 'ada', n: 3 }, { delay: '1m' })
        assert.equal(await holdfast.change(held, { payload: { to: 'bob', n: 2 } }), 'ready')
        assert.equal(await holdfast.change(later, { payload: { to: 'bob', n: 3 } }), 'scheduled')
        await clock.advance(minute)
        await holdfast.sweep()
        assert.deepEqual([await stateOf(holdfast, later), (await readJob(holdfast, later)).limitKey], ['held', 'bob'])
        assert.equal(await holdfast.change(later, { limitKey: null }), 'ready')
        assert.equal((await holdfast.claim([perReceiver], { max: 10 })).length, 3)
      }),
    )

    test(
      'of an item of a batch moves it to its new limit key, and the batch ends',
      inWorld(async ({ holdfast }) => {
        const items = [1, 2].map((n) => ({ queue: perReceiver, payload: { to: 'ada', n } }))
        const later = { queue: perReceiver, payload: { n: 3 }, limitKey: null, delay: '1h' as const }
        const batch = await holdfast.batch({ name: 'letters', concurrency: 3 }, [...items, later])
        const waiting = await allJobs(holdfast, { state: 'held' })
        assert.equal(waiting.length, 1)
        assert.equal(await holdfast.change(waiting[0]?.id as string, { payload: { to: 'bob', n: 2 } }), 'ready')
        const [scheduled] = await allJobs(holdfast, { state: 'scheduled' })
        assert.equal(await holdfast.change(scheduled?.id as string, { limitKey: 'ada' }), 'scheduled')
        assert.equal(await holdfast.reschedule(scheduled?.id as string, 0), 'held')
        assert.deepEqual((await drained(holdfast)).sort(), [1, 2, 3])
        assert.equal((await batch.progress()).state, 'done')
      }),
    )

    test(
      'keeps a limit key that the enqueue stated, and is refused where the new payload has none',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue(perReceiver)
        const { id: stated } = await queue.enqueue({ to: 'ada' }, { limitKey: 'own' })
        const { id: none } = await queue.enqueue({ to: 'ada' }, { limitKey: null })
        const { id } = await queue.enqueue({ to: 'ada' })
        for (const job of [stated, none]) await holdfast.change(job, { payload: { to: 'bob' } })
        const keys = await Promise.all([stated, none].map(async (job) => (await readJob(holdfast, job)).limitKey))
        assert.deepEqual(keys, ['own', null])
        const before = await readJob(holdfast, id)
        const facts = { id, queue: 'mail', path: 'to' }
        await rejects(holdfast.change(id, { payload: { n: 1 }, attempts: 9 }), 'LIMIT_KEY_REQUIRED', facts)
        assert.deepEqual(await readJob(holdfast, id), before)
        await holdfast.change(id, { payload: { n: 1 }, limitKey: 7 })
        assert.equal((await readJob(holdfast, id)).limitKey, '7')
      }),
    )

    test(
      'of a payload states the limit key, too, where the key is a function',
      inWorld(async ({ holdfast }) => {
        const byCode = defineQueue<Mail>('mail', { limit: { key: ({ to }) => to, concurrency: 1 } })
        const { id } = await holdfast.queue(byCode).enqueue({ to: 'ada' })
        await rejects(holdfast.change(id, { payload: { to: 'bob' } }), 'LIMIT_KEY_REQUIRED', { id, path: null })
        await holdfast.change(id, { payload: { to: 'bob' }, limitKey: 'bob' })
        await holdfast.change(id, { attempts: 9 })
        const { payload, limitKey, maxAttempts } = await readJob(holdfast, id)
        assert.deepEqual([payload, limitKey, maxAttempts], [{ to: 'bob' }, 'bob', 9])
      }),
    )

    test(
      'finds labels in the new payload again, and stated labels win and stay',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue(perReceiver)
        const { id } = await queue.enqueue({ to: 'ada', region: 'eu' }, { labels: { kind: 'x' } })
        const { id: stated } = await queue.enqueue({ to: 'ada', region: 'eu' }, { labels: { region: 'own' } })
        for (const job of [id, stated]) await holdfast.change(job, { payload: { to: 'ada', region: 'us' } })
        assert.deepEqual((await readJob(holdfast, id)).labels, { kind: 'x', region: 'us' })
        assert.deepEqual((await readJob(holdfast, stated)).labels, { region: 'own' })
        const foundBy = async (labels: Record<string, string>) =>
          (await allJobs(holdfast, { labels })).map((job) => job.id)
        assert.deepEqual(await foundBy({ region: 'eu' }), [])
        assert.deepEqual(await foundBy({ region: 'us' }), [id])
        const long = { to: 'ada', region: 'x'.repeat(200) }
        await rejects(holdfast.change(id, { payload: long }), 'INVALID_LABEL', { label: 'region' })
        await holdfast.change(id, { labels: { a: 'b' } })
        assert.deepEqual((await readJob(holdfast, id)).labels, { a: 'b', region: 'us' })
        await holdfast.change(id, { payload: { to: 'ada' }, labels: {} })
        assert.deepEqual([(await readJob(holdfast, id)).labels, await foundBy({ kind: 'x' })], [{}, []])
      }),
    )

    test(
      'that races with a claim reaches the handler whole, or is refused',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const mail = holdfast.queue('mail')
        for (let round = 0; round < 20; round++) {
          const { id } = await mail.enqueue('old', { headers: { is: 'old' }, labels: { is: 'old' } })
          const changes = { payload: 'new', headers: { is: 'new' }, labels: { is: 'new' } }
          const changed = other.change(id, changes).then(
            () => 'new',
            () => 'old',
          )
          const lease = await claimOne(holdfast, 'mail')
          const { payload, headers } = lease.job
          const { labels } = await readJob(holdfast, id)
          const is = await changed
          assert.deepEqual([payload, headers['is'], labels['is']], [is, is, is])
          await lease.done()
        }
      }),
    )

    test(
      'that leaves a job in its place is no change of state, and a watch does not report it',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue(perReceiver)
        const { id } = await queue.enqueue({ to: 'ada' })
        const watch = holdfast.watch({ ids: [id] })
        await watch.begun
        await holdfast.change(id, { payload: { to: 'ada', n: 2 }, attempts: 9 })
        await holdfast.cancel(id)
        assert.equal((await watch.next()).value?.state, 'cancelled')
        await watch.return()
      }),
    )
  })

  describe('changes by hand', () => {
    test(
      'are kept with the job, with their time and the name that the call gave',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const times = [clock.now(), 1, 2, 3, 4].map((time, i) => (i === 0 ? time : clock.now() + i * minute))
        await holdfast.change(id, { headers: {}, payload: 2 }, { by: 'ada' })
        await clock.advance(minute)
        await holdfast.reschedule(id, clock.now() + hour, { by: 'bob' })
        await clock.advance(minute)
        await holdfast.reprioritise(id, 0, { by: 'eve' })
        await holdfast.reprioritise(id, 0, { by: 'eve' }) // changes nothing
        await clock.advance(minute)
        await holdfast.reschedule(id, clock.now())
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await clock.advance(minute)
        await holdfast.requeue(id, { by: 'ops' })
        const expected = [
          { as: 'changed', by: 'ada', what: ['payload', 'headers'] },
          { as: 'rescheduled', by: 'bob' },
          { as: 'reprioritised', by: 'eve' },
          { as: 'rescheduled', by: null },
          { as: 'requeued', by: 'ops' },
        ].map((change, i) => ({ ...change, at: new Date(times[i] as number) }))
        assert.deepEqual((await readJob(holdfast, id)).changes, expected)
        const attempts = ({ history }: JobInfo) => history.map(({ ending }) => ending)
        assert.deepEqual(attempts(await readJob(holdfast, id)), ['failed'])
        await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        await (await claimOne(holdfast, 'mail')).done()
        const ended = await readJob(holdfast, id)
        assert.deepEqual(attempts(ended), ['failed', 'failed', 'done'])
        assert.deepEqual(ended.changes, expected)
        const { jobs } = await holdfast.jobs({ include: ['history'] })
        assert.deepEqual([jobs[0]?.changes, jobs[0]?.history], [expected, ended.history])
        assert.equal('changes' in ((await holdfast.jobs()).jobs[0] as object), false)
      }),
    )

    test(
      'requeueAll names its caller in the history of every job, and a dry run in none',
      inWorld(async ({ holdfast }) => {
        const ids = [await deadJob(holdfast, 'mail'), await deadJob(holdfast, 'mail')]
        const said = async () =>
          Promise.all(ids.map(async (id) => (await readJob(holdfast, id)).changes.map(({ as, by }) => [as, by])))
        await holdfast.requeueAll({ queue: 'mail' }, { dryRun: true, by: 'ada' })
        assert.deepEqual(await said(), [[], []])
        await holdfast.requeueAll({ queue: 'mail' }, { by: 'ada' })
        assert.deepEqual(await said(), [[['requeued', 'ada']], [['requeued', 'ada']]])
        await rejects(holdfast.requeueAll({ queue: 'mail' }, { by: 5 as never }), 'INVALID_OPTION', { option: 'by' })
        await rejects(holdfast.requeue(ids[0] as string, { by: '' }), 'INVALID_OPTION', { option: 'by' })
      }),
    )

    test(
      'a retry of the failed items of a batch names its caller in the history of each',
      inWorld(async ({ holdfast }) => {
        const items = [1, 2].map((n) => ({ queue: 'mail', payload: n }))
        const batch = await holdfast.batch({ name: 'letters' }, items)
        for (const _ of items) await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await batch.retryFailed({ by: 'ada' })
        for (const { state, changes } of await allJobs(holdfast)) {
          assert.deepEqual([state, changes.map(({ as, by }) => [as, by])], ['ready', [['requeued', 'ada']]])
        }
      }),
    )

    test(
      'are bounded, as attempts are, and neither displaces the other',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 100 })
        for (let n = 0; n < 3; n++) await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        for (let n = 0; n < bounds.jobChangesKept + 2; n++) await holdfast.change(id, { payload: n }, { by: `${n}` })
        const { changes, history } = await readJob(holdfast, id)
        assert.deepEqual([changes.length, changes[0]?.by, history.length], [bounds.jobChangesKept, '2', 3])
        for (let n = 0; n < bounds.attemptsKept; n++) {
          await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        }
        const after = await readJob(holdfast, id)
        assert.deepEqual([after.changes, after.history.length], [changes, bounds.attemptsKept])
      }),
    )

    test(
      'are no attempts: a search by worker or start finds the job by its last attempt alone',
      inWorld(async ({ holdfast, clock }) => {
        const { id: never } = await holdfast.queue('mail').enqueue(1, { delay: '1h' })
        await holdfast.change(never, { payload: 2 }, { by: 'w1' })
        const { id } = await holdfast.queue('mail').enqueue(1)
        const since = new Date(clock.now())
        await (await claimOne(holdfast, 'mail', { worker: 'w1' })).retry(new Error('no'), { delay: '1h' })
        await clock.advance(minute)
        await holdfast.change(id, { payload: 3 }, { by: 'w2' })
        const found = async (filter: object) => (await allJobs(holdfast, filter)).map((job) => job.id)
        assert.deepEqual(await found({ worker: 'w1' }), [id])
        assert.deepEqual(await found({ worker: 'w2' }), [])
        assert.deepEqual(await found({ started: { since } }), [id])
        assert.deepEqual(await found({ started: { since: new Date(clock.now()) } }), [])
      }),
    )
  })
}

function without(job: JobInfo, names: readonly (keyof JobInfo)[]): Partial<JobInfo> {
  return Object.fromEntries(Object.entries(job).filter(([name]) => !names.includes(name as keyof JobInfo)))
}

/** Runs jobs one by one, and returns the numbers of their payloads in that order. */
async function drained(holdfast: Holdfast): Promise<unknown[]> {
  const numbers: unknown[] = []
  for (;;) {
    const [lease] = await holdfast.claim([perReceiver])
    if (!lease) return numbers
    numbers.push(lease.job.payload.n)
    await lease.done()
  }
}
