import assert, { AssertionError } from 'node:assert/strict'
import test from 'node:test'
import { defineQueue } from '../../src/index.ts'
import { expectEnqueued, expectNothingEnqueued, openInMemory } from '../../src/testing/index.ts'

const mails = defineQueue<{ to: string; tags?: string[]; from?: { name: string } }>('mails')

async function setup() {
  const { holdfast, clock } = await openInMemory()
  return { holdfast, clock, [Symbol.asyncDispose]: () => holdfast.close() }
}

/** The message of the AssertionError with which it rejects. */
async function assertionMessage(asserted: Promise<unknown>): Promise<string> {
  const error = await asserted.then(
    () => assert.fail('It did not reject.'),
    (rejected: unknown) => rejected,
  )
  assert.ok(error instanceof AssertionError, String(error))
  return error.message
}

test('a job that its limit holds counts as enqueued, and is found by its limit key', async () => {
  await using world = await setup()
  const { holdfast } = world
  const single = defineQueue<{ k: string }>('single', { limit: { key: 'k', concurrency: 1 } })
  await holdfast.queue(single).enqueueMany(['a', 'a', 'a', 'b'].map((k) => ({ payload: { k } })))
  const jobs = await expectEnqueued(holdfast, single, { count: 3, limitKey: 'a' })
  assert.deepEqual(
    jobs.map(({ state }) => state),
    ['ready', 'held', 'held'],
  )
  await expectEnqueued(holdfast, single, { count: 2, state: 'held' })
  const leases = await holdfast.claim([single], { max: 2 })
  assert.match(await assertionMessage(expectNothingEnqueued(holdfast, single)), /single, held, priority/)
  assert.match(await assertionMessage(expectEnqueued(holdfast, single, { limitKey: 'b' })), /like \{ limitKey: 'b' \}/)
  for (const lease of leases) await lease.release()
})

test('a waiting job is found by part of its payload, by a predicate, and by every option of enqueue', async () => {
  await using world = await setup()
  const { holdfast, clock } = world
  await holdfast.queue(mails).enqueue({ to: 'a', tags: ['x', 'y'], from: { name: 'Ann' } })
  await holdfast.queue(mails).enqueue(
    { to: 'b' },
    {
      ...{ delay: '5m', priority: 2, attempts: 9, timeout: '1m', dedup: { key: 'once' } },
      ...{ idempotencyKey: 'b', headers: { trace: '1', tenant: 'acme' }, startBefore: clock.now() + 900_000 },
    },
  )
  const all = await expectEnqueued(holdfast, mails, { count: 2 })
  assert.deepEqual(
    all.map(({ payload }) => payload.to),
    ['a', 'b'],
  )
  for (const expected of [
    { payload: { from: { name: 'Ann' } } },
    { payload: { tags: ['x', 'y'] } },
    { payload: ({ tags = [] }: { tags?: string[] }) => tags.length === 2 },
    { state: 'ready' as const },
  ])
    assert.equal((await expectEnqueued(holdfast, mails, { ...expected, count: 1 }))[0].payload.to, 'a')
  const [b] = await expectEnqueued(holdfast, 'mails', {
    ...{ state: 'scheduled', delay: '5m', runAt: clock.now() + 300_000, startBefore: new Date(clock.now() + 900_000) },
    ...{ priority: 2, attempts: 9, timeout: '1m', dedup: { key: 'once' }, idempotencyKey: 'b' },
    headers: { tenant: 'acme' },
  })
  assert.deepEqual(b.payload, { to: 'b' })
  for (const expected of [
    { payload: { to: 'c' } },
    { payload: { from: { name: 'Bob' } } },
    { delay: '6m' as const },
    { priority: 3 },
    { headers: { tenant: 'other' } },
    { id: '01890000-0000-7000-8000-000000000000' },
  ])
    await assertionMessage(expectEnqueued(holdfast, mails, expected))
})

test('the message shows what was expected and what is there instead', async () => {
  await using world = await setup()
  const { holdfast } = world
  assert.equal(
    await assertionMessage(expectEnqueued(holdfast, mails)),
    'Expected at least one job in queue mails; none is like that. Nothing waits there.',
  )
  await holdfast.queue('other').enqueue({ n: 1 })
  assert.match(
    await assertionMessage(expectEnqueued(holdfast, mails)),
    /Elsewhere:\n {2}other, ready, priority 5: \{ n: 1 \}$/,
  )
  await holdfast.queue(mails).enqueueMany([{ payload: { to: 'a' } }, { payload: { to: 'b' }, delay: '90s' }])
  assert.equal(
    await assertionMessage(expectEnqueued(holdfast, mails, { payload: { to: 'a' }, count: 2 })),
    [
      "Expected 2 jobs in queue mails like { payload: { to: 'a' } }; 1 is like that. There:",
      "  mails, ready, priority 5: { to: 'a' }",
      "  mails, due in 1.5m, priority 5: { to: 'b' }",
    ].join('\n'),
  )
  await holdfast.queue(mails).enqueueMany(Array.from({ length: 20 }, () => ({ payload: { to: 'c' } })))
  assert.match(await assertionMessage(expectEnqueued(holdfast, mails, { count: 1 })), /… and 12 more$/)
})

test('expectNothingEnqueued covers one queue or all, and ignores jobs that run or have ended', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(mails).enqueue({ to: 'a' })
  assert.match(
    await assertionMessage(expectNothingEnqueued(holdfast)),
    /^Expected nothing to wait in any queue; there:\n {2}mails/,
  )
  assert.match(await assertionMessage(expectNothingEnqueued(holdfast, mails)), /in queue mails/)
  await expectNothingEnqueued(holdfast, 'other')
  const [lease] = await holdfast.queue(mails).claim()
  await expectNothingEnqueued(holdfast)
  await lease?.done()
  await expectNothingEnqueued(holdfast, holdfast.queue(mails))
})

test('all pages of waiting jobs are searched', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(mails).enqueueMany(Array.from({ length: 2_500 }, (_, n) => ({ payload: { to: String(n) } })))
  assert.equal((await expectEnqueued(holdfast, mails, { count: 2_500 })).length, 2_500)
  await expectEnqueued(holdfast, mails, { payload: { to: '2499' }, count: 1 })
})

test('a misspelt option is refused', async () => {
  await using world = await setup()
  await assert.rejects(expectEnqueued(world.holdfast, mails, { prio: 1 } as never), { code: 'INVALID_OPTION' })
  await assert.rejects(expectEnqueued(world.holdfast, mails, { count: 0 }), { code: 'INVALID_OPTION' })
})
