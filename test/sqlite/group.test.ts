// Group commit: concurrent calls share a transaction, and no call fails because of another. Commits are counted in the
// write-ahead log itself. Errors of SQLite are caused by a trigger or a missing table, made outside of the store.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { HoldfastError } from '../../src/errors.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { claimOne, heard, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { committed, type JobsFile, jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'

const numbers = (count: number) => Array.from({ length: count }, (_, n) => n)

describe('concurrent calls', () => {
  test('share one commit: a hundred enqueues', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueue('first')
    const before = committed(file.path)
    const answers = await Promise.all(numbers(100).map((n) => holdfast.queue('mail').enqueue(n)))
    assert.equal(committed(file.path) - before, 1)
    assert.equal(new Set(answers.map(({ id }) => id)).size, 100)
    assertCountsEqualRecount(file.raw())
  })

  test('share one commit: enqueues, settlements and kv writes that arrive during a commit', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany(numbers(20).map((payload) => ({ payload })))
    const leases = await holdfast.claim(['mail'], { max: 20 })
    const writer = file.raw()
    writer.exec('begin immediate') // the first call has to wait, and the others arrive meanwhile
    const before = committed(file.path)
    const all = [
      holdfast.kv.put('first', 1),
      ...numbers(20).map((n) => holdfast.queue('post').enqueue(n)),
      ...leases.map((lease) => lease.done()),
    ]
    await new Promise((resolve) => setImmediate(resolve)) // all calls have been sent to the store's thread
    writer.exec('rollback')
    await Promise.all(all)
    const commits = committed(file.path) - before
    assert.ok(commits >= 1 && commits <= 2, `${commits} commits for 41 calls`)
    assertCountsEqualRecount(writer)
  })

  test('get each its own answer or its own error', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const mail = holdfast.queue('mail')
    const taken = randomUUID()
    await mail.enqueue('taken', { id: taken })
    await mail.enqueue('one', { idempotencyKey: 'once' })
    const before = committed(file.path)
    const outcomes = await Promise.allSettled([
      mail.enqueue('good 1'),
      mail.enqueue('bad', { id: taken }),
      mail.enqueue('good 2', { idempotencyKey: 'fresh' }),
      mail.enqueue('another', { idempotencyKey: 'once' }),
      mail.enqueueMany([{ payload: 'half' }, { payload: 'bad', id: taken }]),
      mail.enqueue('one', { idempotencyKey: 'once' }),
      mail.enqueue('good 3', { dedup: { key: 'k' } }),
      mail.enqueue('good 3', { dedup: { key: 'k' } }),
    ])
    const answers = outcomes.map((o) => {
      if (o.status === 'rejected') return (o.reason as HoldfastError).code
      return 'status' in o.value ? o.value.status : o.value
    })
    assert.deepEqual(answers, [
      'created',
      'DUPLICATE_JOB_ID',
      'created',
      'IDEMPOTENCY_MISMATCH',
      'DUPLICATE_JOB_ID',
      'duplicate',
      'created',
      'duplicate',
    ])
    assert.equal(committed(file.path) - before, 1)
    const { jobs } = await holdfast.jobs({ queue: 'mail', include: ['payload'] })
    assert.deepEqual(jobs.map(({ payload }) => payload).sort(), ['good 1', 'good 2', 'good 3', 'one', 'taken'])
    assertCountsEqualRecount(file.raw())
  })

  test('settle each alone: a lost lease and a failing effect change nothing for the others', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany(numbers(5).map((payload) => ({ payload })))
    const taken = randomUUID()
    await holdfast.queue('post').enqueue('taken', { id: taken })
    const [good, lost, failing, rest, last] = await holdfast.claim(['mail'], { max: 5 })
    await lost?.release()
    const outcomes = await Promise.allSettled([
      good?.done('result', { put: [{ key: 'good', value: 1 }] }),
      lost?.done('result', { put: [{ key: 'lost', value: 1 }] }),
      failing?.done('r', { put: [{ key: 'failing', value: 1 }], enqueue: [{ queue: 'post', payload: 1, id: taken }] }),
      rest?.retry(new Error('later'), { delay: '1h' }),
      last?.done('result', { enqueue: [{ queue: 'post', payload: 'follow-up' }] }),
    ])
    const answers = outcomes.map((o) => (o.status === 'rejected' ? (o.reason as HoldfastError).code : o.value?.state))
    assert.deepEqual(answers, ['done', 'LEASE_LOST', 'DUPLICATE_JOB_ID', 'scheduled', 'done'])
    assert.deepEqual(
      (await Array.fromAsync(holdfast.kv.scan(''))).map(({ key }) => key),
      ['good'],
    )
    assert.equal((await holdfast.stats('post')).ready, 2)
    assertCountsEqualRecount(file.raw())
  })
})

describe('a request that fails with an error of SQLite itself', () => {
  for (const how of ['abort', 'fail', 'rollback']) {
    test(`fails alone, and nothing of it is stored, if the statement ends in ${how}`, async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      const mail = holdfast.queue('mail')
      poison(file, 'holdfast_job', 'payload', how)
      const outcomes = await Promise.allSettled([
        ...numbers(5).map((n) => mail.enqueue(n)),
        mail.enqueue('poison'),
        mail.enqueueMany([{ payload: 'before' }, { payload: 'poison' }, { payload: 'after' }]),
        mail.enqueue('poison', { id: randomUUID(), dedup: { key: 'k' } }),
        ...numbers(5).map((n) => mail.enqueue(n, { id: randomUUID() })),
      ])
      assert.deepEqual(
        outcomes.map(({ status }) => status),
        [...Array(5).fill('fulfilled'), ...Array(3).fill('rejected'), ...Array(5).fill('fulfilled')],
      )
      for (const outcome of outcomes) {
        if (outcome.status === 'fulfilled') continue
        assert.equal((outcome.reason as HoldfastError).code, 'INVALID_OPTION')
        assert.match((outcome.reason as HoldfastError).message, /poisoned/)
      }
      const { jobs } = await holdfast.jobs({ queue: 'mail', include: ['payload'] })
      assert.deepEqual(jobs.map(({ payload }) => payload).sort(), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
      assert.equal((await mail.enqueue('good', { dedup: { key: 'k' } })).status, 'created')
      assertCountsEqualRecount(file.raw())
    })

    test(`in a settlement leaves that job leased and its effects undone, if the statement ends in ${how}`, async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      await holdfast.queue('mail').enqueueMany(numbers(3).map((payload) => ({ payload })))
      const [first, bad, second] = await holdfast.claim(['mail'], { max: 3 })
      assert.ok(first && bad && second)
      poison(file, 'holdfast_kv', 'value', how)
      const effects = (value: string) => ({
        put: [{ key: value, value }],
        enqueue: [{ queue: 'post', payload: value }],
      })
      const outcomes = await Promise.allSettled([
        first.done(1, effects('first')),
        bad.done(2, effects('poison')),
        second.done(3, effects('second')),
        holdfast.kv.put('poisoned too', 'poison'),
        holdfast.kv.put('fine', 1),
      ])
      assert.deepEqual(
        outcomes.map((o) => (o.status === 'rejected' ? (o.reason as HoldfastError).code : 'ok')),
        ['ok', 'INVALID_OPTION', 'ok', 'INVALID_OPTION', 'ok'],
      )
      assert.equal(await stateOf(holdfast, bad.job.id), 'running')
      assert.equal((await holdfast.stats('post')).ready, 2)
      assert.deepEqual(
        (await Array.fromAsync(holdfast.kv.scan(''))).map(({ key }) => key),
        ['fine', 'first', 'second'],
      )
      assert.equal((await bad.done(2)).state, 'done')
      assertCountsEqualRecount(file.raw())
    })
  }

  test('is no outage if the file refuses its values: every other call has INVALID_OPTION for itself alone', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const mail = holdfast.queue('mail')
    const stored = await mail.enqueueMany(
      ['good', 'poison', 'good', 'poison', 'good', 'poison'].map((payload) => ({ payload })),
    )
    const [good, bad, dead, badDead, running, badRunning] = stored.map(({ id }) => id)
    assert.ok(good && bad && dead && badDead && running && badRunning)
    for (const lease of await holdfast.claim(['mail'], { max: 6 })) {
      if ([dead, badDead].includes(lease.job.id)) await lease.dead(new Error('no'))
      if ([good, bad].includes(lease.job.id)) await lease.release()
    }
    const isBad = (seq: string) =>
      `exists (select 1 from holdfast_job j where j.seq = ${seq} and j.payload like '%poison%')`
    const refuse = (name: string, when: string) =>
      file.raw().exec(`create trigger ${name} before ${when} begin select raise(abort, 'poisoned'); end`)
    poison(file, 'holdfast_job', 'payload', 'abort')
    refuse('changes', `update on holdfast_job when ${isBad('new.seq')}`)
    refuse('ends', `insert on holdfast_ended when ${isBad('new.seq')}`)
    refuse('batches', `insert on holdfast_batch when new.name = 'poison'`)
    refuse('queues', `insert on holdfast_queue when new.name = 'poison'`)
    const calls = [
      ...[holdfast.requeue(badDead), holdfast.requeue(dead)],
      ...[holdfast.reprioritise(bad, 3), holdfast.reprioritise(good, 3)],
      ...[holdfast.cancel(badRunning), holdfast.cancel(running)],
      ...[holdfast.batch({ name: 'poison' }, []), holdfast.batch({ name: 'good' }, [])],
      ...['poison', 'good'].map((payload) => holdfast.batch({ name: 'items' }, [{ queue: 'mail', payload }])),
      ...['poison', 'good'].map((queue) => holdfast.pause(queue)),
    ]
    const codes = calls.map(async (call: Promise<unknown>) =>
      call.then(
        () => 'ok',
        (error: HoldfastError) => error.code,
      ),
    )
    assert.deepEqual(
      await Promise.all(codes),
      numbers(6).flatMap(() => ['INVALID_OPTION', 'ok']),
    )
    const error = await rejects(holdfast.cancel(bad), 'INVALID_OPTION', { id: bad })
    assert.equal(error.message, `SQLite refuses the cancel of job ${bad}: poisoned. Nothing was carried out.`)
    assertCountsEqualRecount(file.raw())
  })

  test('in a slot of one schedule does not stop the others', async () => {
    await using file = await jobsFile()
    const clock = new VirtualClock()
    const holdfast = await file.open({ clock })
    for (const [name, payload] of Object.entries({ a: 'good', b: 'poison', c: 'good' }))
      await holdfast.schedule(name, { cron: '* * * * *', timeZone: 'UTC', queue: 'mail', payload })
    poison(file, 'holdfast_job', 'payload', 'abort')
    const failed = heard(holdfast, 'schedule.failed')
    clock.advance(60_000)
    assert.equal((await holdfast.sweep()).fired, 2)
    const [{ schedule, error } = assert.fail()] = await failed
    assert.equal(schedule, 'b')
    assert.match(error.message, /poisoned/)
  })

  test('does not stop claims and renewals', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany(['good', 'poison', 'good'].map((payload) => ({ payload })))
    const { jobs } = await holdfast.jobs({ queue: 'mail', include: ['payload'] })
    const bad = jobs.find(({ payload }) => payload === 'poison')
    file.raw().exec(`create trigger poison before insert on holdfast_lease
      when new.seq = (select seq from holdfast_job where id = '${bad?.id}')
      begin select raise(abort, 'poisoned'); end`)
    const held = await claimOne(holdfast, 'mail')
    const [refused, renewed, other] = await Promise.allSettled([
      holdfast.claim(['mail'], { max: 2 }),
      held.renew('1m'),
      holdfast.claim(['post']),
    ])
    assert.equal(refused.status, 'rejected')
    assert.deepEqual([renewed.status, other.status], ['fulfilled', 'fulfilled'])
    assert.equal((await readJob(holdfast, bad?.id ?? '')).state, 'ready')
    assertCountsEqualRecount(file.raw())
  })
})

test('if a table is missing, only the calls that need it fail, and they work again when it is back', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.kv.put('k', 'kept')
  const other = file.raw()
  other.exec('alter table holdfast_kv rename to away')
  const outcomes = await Promise.allSettled([
    holdfast.queue('mail').enqueue(1),
    holdfast.kv.put('k', 'changed'),
    holdfast.queue('mail').enqueue(2),
  ])
  assert.deepEqual(
    outcomes.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  )
  const error = await rejects(holdfast.kv.get('k'), 'STORE_UNAVAILABLE')
  assert.match(error.message, /no such table: holdfast_kv/)
  other.exec('alter table away rename to holdfast_kv')
  assert.equal((await holdfast.kv.get('k'))?.value, 'kept')
  assert.equal((await holdfast.stats('mail')).ready, 2)
  assertCountsEqualRecount(other)
})

test('a store in which every call failed for a while goes on afterwards', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueue(1)
  const other = file.raw()
  other.exec('alter table holdfast_queue rename to away')
  other.exec('create table noise (n)') // a second commit, so that the store has certainly seen the first
  for (let n = 0; n < 3; n++) {
    await rejects(holdfast.queue('mail').enqueue(2), 'STORE_UNAVAILABLE')
    await rejects(holdfast.claim(['mail']), 'STORE_UNAVAILABLE')
    await rejects(holdfast.queues(), 'STORE_UNAVAILABLE')
    other.exec(`insert into noise values (${n})`)
  }
  other.exec('alter table away rename to holdfast_queue')
  assert.equal((await holdfast.stats('mail')).ready, 1)
  assert.equal((await (await claimOne(holdfast, 'mail')).done()).state, 'done')
  assertCountsEqualRecount(other)
})

/** From now on SQLite refuses every row of the table whose text contains the word. */
function poison(file: JobsFile, table: string, column: string, how: string): void {
  file.raw().exec(
    `create trigger poison before insert on ${table} when new.${column} like '%poison%'
       begin select raise(${how}, 'poisoned'); end`,
  )
}
