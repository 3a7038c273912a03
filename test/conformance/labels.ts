// Labels: names with values by which jobs are found. Each test ends with a recount of the rows that serve the search.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { bounds } from '../../src/job/bounds.ts'
import { type AnyDefinition, defineQueue } from '../../src/queue/definition.ts'
import type { Entry } from '../../src/queue/queue.ts'
import { allJobs, claimOne, day, heard, hour, minute, readJob, rejects } from './expect.ts'
import { deaths } from './on-dead.ts'
import { type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

const c1 = { customer: 'c1' }
const both = { customer: 'c1', region: 'eu' }
const ruled = defineQueue<unknown>('mail', { labels: { customer: 'customer.id', order: 'order' } })
const tooLong = 'é'.repeat(65)

export function labelTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('labels', () => {
    stated(inWorld)
    byDefinition(inWorld)
    kept(inWorld)
    inherited(inWorld)
    removed(inWorld)
    if (dialect) {
      ofCallers(withSql(inWorld))
      examined(withSql(inWorld), { damage: dialect.damagedLabels })
    }
  })
}

function stated(inWorld: InWorld): void {
  describe('that the enqueue states', () => {
    test(
      'are shown in every state, to a claim by hand, to the handler, in listings and in events',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1, { labels: both })
        const unlabelled = await mail.enqueue(2)
        assert.deepEqual((await readJob(holdfast, id)).labels, both)
        assert.deepEqual((await readJob(holdfast, unlabelled.id)).labels, {})
        assert.deepEqual(await labelsOfAll(holdfast), [both, {}])
        const [first, second] = await holdfast.claim(['mail'], { max: 2 })
        assert.deepEqual([first?.job.labels, second?.job.labels], [both, {}])
        assert.deepEqual((await readJob(holdfast, id)).labels, both)
        await first?.release()
        await second?.done()
        const done = heard(holdfast, 'job.done')
        await using worker = holdfast.work(mail, (job) => job.labels)
        const [event] = await done
        assert.deepEqual(event?.labels, both)
        await worker.stop()
        const ended = await readJob(holdfast, id)
        assert.deepEqual([ended.state, ended.labels, ended.result], ['done', both, both])
      }),
    )

    test(
      'are in the events of a lease that expired, and of a job that is dead by it',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue(1, { labels: both, attempts: 1 })
        await holdfast.claim(['mail'], { lease: '1s' })
        const [expired, dead] = [heard(holdfast, 'lease.expired'), heard(holdfast, 'job.dead')]
        await clock.advance(2_000)
        await holdfast.sweep()
        assert.deepEqual((await expired)[0]?.labels, both)
        assert.deepEqual((await dead)[0]?.labels, both)
      }),
    )

    test(
      'reach the handler of one job alone, and of jobs with and without labels in one claim',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail')
        for (const labels of [c1, both, {}]) {
          await mail.enqueue(1, { labels })
          const lease = await claimOne(holdfast, 'mail')
          assert.deepEqual(lease.job.labels, labels)
          await lease.done()
        }
        await mail.enqueueMany([{ payload: 1 }, { payload: 2, labels: c1 }, { payload: 3 }])
        const leases = await holdfast.claim(['mail'], { max: 3 })
        assert.deepEqual(
          leases.map(({ job }) => job.labels),
          [{}, c1, {}],
        )
      }),
    )

    const ways: Readonly<Record<string, (holdfast: Holdfast) => Promise<unknown>>> = {
      'one job': (holdfast) => holdfast.queue('mail').enqueue(1, { labels: c1 }),
      'many jobs': (holdfast) => many(holdfast, {}),
      'a scheduled job': (holdfast) => holdfast.queue('mail').enqueue(1, { labels: c1, delay: '1h' }),
      'many scheduled jobs': (holdfast) => many(holdfast, { delay: '1h' }),
      'a job with a limit key': (holdfast) =>
        holdfast.queue('mail', { limit: { key: 'k', concurrency: 1 } }).enqueue({ k: 'a' }, { labels: c1 }),
      'a job with keys': (holdfast) =>
        holdfast.queue('mail').enqueue(1, { labels: c1, dedup: { key: 'a' }, idempotencyKey: 'a', priority: 2 }),
      'a job with an id': (holdfast) =>
        holdfast.queue('mail').enqueue(1, { labels: c1, id: '0190a5b0-0000-7000-8000-000000000001' }),
      'many jobs with dedup keys': (holdfast) =>
        holdfast
          .queue('mail')
          .enqueueMany(Array.from({ length: 12 }, (_, n) => ({ payload: n, labels: c1, dedup: { key: `k${n}` } }))),
      'a follow-up': async (holdfast) => {
        await holdfast.queue('first').enqueue(1)
        await (await claimOne(holdfast, 'first')).done(null, { enqueue: [{ queue: 'mail', payload: 1, labels: c1 }] })
      },
      'a follow-up with a key': async (holdfast) => {
        await holdfast.queue('first').enqueue(1)
        const enqueue = [{ queue: 'mail', payload: 1, labels: c1, dedup: { key: 'a' } }]
        await (await claimOne(holdfast, 'first')).done(null, { enqueue })
      },
      'items of a batch': async (holdfast) => {
        const items = Array.from({ length: 3 }, (_, n) => ({ queue: 'mail', payload: n, labels: c1 }))
        await holdfast.batch({ name: 'letters' }, items)
      },
      'items of a batch with keys': async (holdfast) => {
        const items = Array.from({ length: 12 }, (_, n) => ({
          queue: 'mail',
          payload: n,
          labels: c1,
          dedup: { key: `k${n}` },
        }))
        await holdfast.batch({ name: 'letters' }, items)
      },
      'the completion of a batch': async (holdfast) => {
        const onComplete = { queue: 'mail', labels: c1 }
        await holdfast.batch({ name: 'letters', onComplete }, [{ queue: 'first', payload: 1 }])
        await (await claimOne(holdfast, 'first')).done()
      },
    }
    for (const [what, enqueue] of Object.entries(ways)) {
      test(
        `are stored with ${what}`,
        inWorld(async ({ holdfast }) => {
          await enqueue(holdfast)
          const found = await labelsOfAll(holdfast, 'mail')
          assert.ok(found.length > 0)
          for (const labels of found) assert.deepEqual(labels, c1)
        }),
      )
    }

    test(
      'are stored with the job of a schedule’s slot, and a change of them changes the schedule',
      inWorld(async ({ holdfast, clock }) => {
        const changes: (readonly string[])[] = []
        holdfast.on('schedule.changed', (event) => changes.push(event.changes))
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'mail', labels: both })
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'mail', labels: c1 })
        assert.deepEqual(changes, [['labels']])
        await clock.advance(hour)
        await holdfast.sweep()
        assert.deepEqual(await labelsOfAll(holdfast, 'mail'), [c1])
      }),
    )

    test(
      'may have any clean text as a value, and names such as __proto__',
      inWorld(async ({ holdfast }) => {
        const entries = [
          ['__proto__', 'x'],
          ['constructor', '%_\\\'"=;--'],
          ['a.b-c_D9', '\u001e\n\t'],
          ['long', 'é'.repeat(64)],
          [`n${'m'.repeat(63)}`, '😀'],
          ['_', ' '],
        ] as const
        const labels = Object.fromEntries(entries)
        const { id } = await holdfast.queue('mail').enqueue(1, { labels })
        await holdfast.queue('mail').enqueue(2, { labels: c1 })
        assert.deepEqual(Object.entries((await readJob(holdfast, id)).labels).sort(), [...entries].sort())
        const [first, second] = await holdfast.claim(['mail'], { max: 2 })
        assert.deepEqual(Object.entries(first?.job.labels ?? {}).sort(), [...entries].sort())
        assert.deepEqual(second?.job.labels, c1)
        await holdfast.delete((await holdfast.queue('mail').enqueue(3, { labels })).id)
      }),
    )

    const bad: Readonly<Record<string, unknown>> = {
      'a text': 'c1',
      'an array': ['c1'],
      null: null,
      'a number as a value': { customer: 1 },
      'an empty value': { customer: '' },
      'a value that is too long': { customer: tooLong },
      'a NUL': { customer: 'a\0b' },
      'half a character': { customer: '\ud800' },
      'an empty name': { '': 'a' },
      'a name that begins with a digit': { '1st': 'a' },
      'a name with a space': { 'a b': 'a' },
      'a name that is too long': { [`n${'m'.repeat(64)}`]: 'a' },
      'nine labels': Object.fromEntries(Array.from({ length: bounds.labelsMax + 1 }, (_, n) => [`l${n}`, 'a'])),
    }
    for (const [what, labels] of Object.entries(bad)) {
      test(
        `are refused if they are or contain ${what}`,
        inWorld(async ({ holdfast }) => {
          const mail = holdfast.queue('mail')
          const error = await rejects(mail.enqueue(1, { labels } as never), 'INVALID_OPTION', { option: 'labels' })
          assert.doesNotMatch(error.message, /é{9}/, 'a value is not part of the sentence')
          await rejects(mail.enqueueMany([{ payload: 1 }, { payload: 1, labels } as never]), 'INVALID_OPTION', {
            index: 1,
          })
          assert.deepEqual(await allJobs(holdfast), [])
        }),
      )
    }
  })
}

function byDefinition(inWorld: InWorld): void {
  describe('that the definition finds', () => {
    test(
      'are found in the payload of every producer, also of one that knows only the name, and stated ones win by name',
      inWorld(async ({ holdfast, another }) => {
        await define(holdfast, ruled)
        const payload = { customer: { id: 'c1' }, order: 7 }
        const mail = (await another()).queue('mail')
        await mail.enqueue(payload)
        await mail.enqueue(payload, { labels: { order: 'mine', region: 'eu' } })
        await mail.enqueueMany([{ payload }, { payload, dedup: { key: 'a' } }])
        await mail.enqueueMany(Array.from({ length: 12 }, (_, n) => ({ payload, dedup: { key: `k${n}` } })))
        const found = await labelsOfAll(holdfast, 'mail')
        assert.deepEqual(found[0], { customer: 'c1', order: '7' })
        assert.deepEqual(found[1], { customer: 'c1', order: 'mine', region: 'eu' })
        for (const labels of found.slice(2)) assert.deepEqual(labels, { customer: 'c1', order: '7' })
        assert.equal(found.length, 16)
      }),
    )

    test(
      'are found for follow-ups, items and jobs of a definition that the store has not seen',
      inWorld(async ({ holdfast }) => {
        const payload = { customer: { id: 'c1' } }
        await holdfast.queue('first').enqueue(1)
        await (await claimOne(holdfast, 'first')).done(null, { enqueue: [{ queue: ruled, payload }] })
        await holdfast.batch({ name: 'letters' }, [{ queue: ruled, payload }])
        await holdfast.queue(ruled).enqueue(payload)
        assert.deepEqual(await labelsOfAll(holdfast, 'mail'), [c1, c1, c1])
      }),
    )

    const valueless: readonly unknown[] = [
      null,
      7,
      'c1',
      [],
      {},
      { customer: null },
      { customer: [{ id: 'c1' }] },
      { customer: { id: null } },
      { customer: { id: '' } },
      { customer: { id: true } },
      { customer: { id: {} } },
      { customer: { id: 1.5 } },
      { customer: { id: 2 ** 60 } },
    ]
    test(
      'are left out where the payload has no value at the path that a limit key could be',
      inWorld(async ({ holdfast }) => {
        await define(holdfast, ruled)
        const mail = holdfast.queue('mail')
        await mail.enqueueMany(valueless.map((payload) => ({ payload })))
        for (const payload of valueless) await mail.enqueue(payload, { dedup: { key: JSON.stringify(payload) } })
        const found = await labelsOfAll(holdfast, 'mail')
        assert.deepEqual(found, Array(2 * valueless.length).fill({}))
      }),
    )

    test(
      'are refused if the value is too long or unclean, whatever the way in, and the refusal contains no value',
      inWorld(async ({ holdfast, another }) => {
        await define(holdfast, ruled)
        const mail = (await another()).queue('mail')
        const facts = { queue: 'mail', label: 'customer', path: 'customer.id' }
        for (const id of [tooLong, 'x'.repeat(1_000), 'a\0b', '\ud800']) {
          const payload = { customer: { id } }
          const error = await rejects(mail.enqueue(payload), 'INVALID_LABEL', facts)
          assert.doesNotMatch(error.message, /[éx]{9}/)
          await rejects(mail.enqueue(payload, { dedup: { key: 'a' } }), 'INVALID_LABEL', facts)
          await rejects(mail.enqueue(payload, { idempotencyKey: 'a' }), 'INVALID_LABEL', facts)
          await rejects(mail.enqueueMany([{ payload: 1 }, { payload }]), 'INVALID_LABEL', { ...facts, index: 1 })
          const keyed: Entry<unknown>[] = Array.from({ length: 12 }, (_, n) => ({
            payload: n,
            dedup: { key: `k${n}` },
          }))
          await rejects(mail.enqueueMany(keyed.with(9, { payload })), 'INVALID_LABEL', { ...facts, index: 9 })
          await rejects(holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload }]), 'INVALID_LABEL', facts)
          await mail.enqueue(payload, { labels: c1 })
        }
        await rejects(mail.enqueue({ customer: { id: tooLong } }), 'INVALID_LABEL', { bytes: 130 })
        assert.deepEqual(await labelsOfAll(holdfast, 'mail'), Array(4).fill(c1))
      }),
    )

    test(
      'refuse a follow-up that does not fit: its job is retried, and none of its effects is applied',
      inWorld(async ({ holdfast }) => {
        await define(holdfast, ruled)
        const { id } = await holdfast.queue('first').enqueue(1)
        const enqueue = [{ queue: 'mail', payload: { customer: { id: tooLong } } }]
        await rejects((await claimOne(holdfast, 'first')).done(null, { enqueue }), 'INVALID_LABEL')
        assert.equal((await readJob(holdfast, id)).state, 'scheduled')
        assert.deepEqual(await allJobs(holdfast, { queue: 'mail' }), [])
      }),
    )

    test(
      'and stated ones together are at most 8',
      inWorld(async ({ holdfast }) => {
        const paths = Object.fromEntries(Array.from({ length: 8 }, (_, n) => [`l${n}`, `l${n}`]))
        const mail = holdfast.queue('mail', { labels: paths })
        const payload = Object.fromEntries(Array.from({ length: 8 }, (_, n) => [`l${n}`, n]))
        await rejects(mail.enqueue(payload, { labels: c1 }), 'INVALID_LABEL', { labels: 9 })
        await mail.enqueue(payload, { labels: { l0: 'mine' } })
        await mail.enqueue({ l1: 1 }, { labels: c1 })
        const [eight = {}, two] = await labelsOfAll(holdfast)
        assert.deepEqual([Object.keys(eight).length, eight['l0'], two], [8, 'mine', { customer: 'c1', l1: '1' }])
      }),
    )

    test(
      'are left out, and the job is stored, where the store itself makes the job: a notice, a completion, a slot',
      inWorld(async ({ holdfast, clock }) => {
        await define(holdfast, defineQueue('alerts', { labels: { user: 'payload.id', origin: 'queue', why: 'why' } }))
        const dying = holdfast.queue('dying', { onDead: { queue: 'alerts' } })
        await dying.enqueue({ id: tooLong })
        await (await claimOne(holdfast, 'dying')).dead(new Error('gone'))
        assert.deepEqual(await labelsOfAll(holdfast, 'alerts'), [{ origin: 'dying' }])
        const onComplete = { queue: 'alerts', payload: { why: tooLong }, labels: c1 }
        await holdfast.batch({ name: 'letters', onComplete }, [{ queue: 'first', payload: 1 }])
        await (await claimOne(holdfast, 'first')).done()
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'alerts', payload: { why: tooLong, queue: 'q' } })
        await clock.advance(hour)
        await holdfast.sweep()
        const found = await labelsOfAll(holdfast, 'alerts')
        assert.deepEqual(found, [{ origin: 'dying' }, c1, { origin: 'q' }])
      }),
    )

    test(
      'of a changed definition count for new jobs, and jobs that exist keep theirs',
      inWorld(async ({ holdfast, another }) => {
        await define(holdfast, ruled)
        const other = await another()
        const payload = { customer: { id: 'c1' }, region: 'eu' }
        const mail = other.queue('mail')
        await mail.enqueue(payload)
        const changes = heard(holdfast, 'queue.redefined')
        await define(holdfast, defineQueue('mail', { labels: { region: 'region' } }))
        assert.deepEqual((await changes)[0]?.changes, ['labels'])
        await mail.enqueue(payload)
        const gone = heard(holdfast, 'queue.redefined')
        await define(holdfast, defineQueue('mail', { attempts: 5 }))
        assert.deepEqual((await gone)[0]?.changes, ['labels'])
        await mail.enqueue(payload)
        assert.deepEqual(await labelsOfAll(holdfast, 'mail'), [c1, { region: 'eu' }, {}])
      }),
    )

    const bad: readonly unknown[] = [
      'customer.id',
      ['customer'],
      null,
      { customer: 7 },
      { customer: '' },
      { customer: 'a..b' },
      { customer: 'a[0]' },
      { customer: '0.id' },
      { '1st': 'a' },
      { customer: () => 'c1' },
      Object.fromEntries(Array.from({ length: 9 }, (_, n) => [`l${n}`, 'a'])),
    ]
    test('are refused in a definition unless they are at most 8 names with paths', () => {
      for (const labels of bad) {
        assert.throws(() => defineQueue('mail', { labels } as never), { code: 'INVALID_OPTION' })
      }
      assert.equal(defineQueue('mail', { labels: {} }).settings?.labels, undefined)
    })
  })
}

function kept(inWorld: InWorld): void {
  test(
    'the labels of a replaced job are those of the newest enqueue',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const dedup = { key: 'a', replace: true }
      const { id } = await mail.enqueue(1, { dedup, labels: both })
      const later = [{ customer: 'c2' }, { region: 'us', customer: 'c2' }, {}, c1]
      for (const labels of later) {
        assert.equal((await mail.enqueue(1, { dedup, labels })).status, 'replaced')
        assert.deepEqual((await readJob(holdfast, id)).labels, labels)
      }
      await mail.enqueue(1, { dedup: { key: 'a' }, labels: both })
      assert.deepEqual((await readJob(holdfast, id)).labels, c1, 'a duplicate changes nothing')
    }),
  )

  test(
    'an enqueue with the same idempotency key and other labels is a duplicate',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const first = await mail.enqueue(1, { idempotencyKey: 'a', labels: c1 })
      const second = await mail.enqueue(1, { idempotencyKey: 'a', labels: both })
      assert.deepEqual(second, { id: first.id, status: 'duplicate' })
      assert.deepEqual((await readJob(holdfast, first.id)).labels, c1)
    }),
  )

  test(
    'a retried, rescued, woken, moved or requeued job keeps its labels',
    inWorld(async ({ holdfast, clock }) => {
      const mail = holdfast.queue('mail', {
        onDead: { queue: 'alerts' },
        limit: { key: 'k', concurrency: 1 },
        lease: '30s',
      })
      const { id } = await mail.enqueue({ k: 'a' }, { labels: both, attempts: 3, delay: '1m' })
      const same = async (state: string) => {
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.labels], [state, both])
      }
      await holdfast.wake(id)
      await holdfast.reprioritise(id, 2)
      await same('ready')
      await (await claimOne(holdfast, 'mail')).retry(new Error('again'), { delay: '1m' })
      await same('scheduled')
      await clock.advance(minute)
      await holdfast.sweep()
      await claimOne(holdfast, 'mail')
      await clock.advance(minute)
      await holdfast.sweep()
      const lease = await claimOne(holdfast, 'mail')
      assert.deepEqual(lease.job.labels, both)
      await lease.dead(new Error('gone'))
      await same('dead')
      await holdfast.requeue(id)
      await same('ready')
      await (await claimOne(holdfast, 'mail')).dead(new Error('gone'))
      await holdfast.requeueAll({ queue: 'mail' })
      await same('ready')
    }),
  )
}

function inherited(inWorld: InWorld): void {
  describe('a death notice', () => {
    for (const [what, die] of Object.entries(deaths)) {
      test(
        `has the labels of the job that died by ${what}`,
        inWorld(async (world) => {
          const { holdfast } = world
          const mail = holdfast.queue('mail', { onDead: { queue: 'alerts' } })
          await mail.enqueue(1, { attempts: 1, labels: both })
          await die(await claimOne(holdfast, 'mail'), world)
          assert.deepEqual(await labelsOfAll(holdfast, 'alerts'), [both])
          const { jobs } = await holdfast.jobs({ labels: c1 })
          assert.deepEqual(jobs.map(({ queue }) => queue).toSorted(), ['alerts', 'mail'])
        }),
      )
    }

    test(
      'has the labels of the job whose attempt timed out',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { onDead: { queue: 'alerts' }, timeout: '10ms' })
        const died = heard(holdfast, 'job.dead')
        await mail.enqueue(1, { attempts: 1, labels: both })
        const worker = holdfast.work('mail', (job) => new Promise((resolve) => (job.signal.onabort = resolve)))
        await died
        await worker.stop()
        assert.deepEqual(await labelsOfAll(holdfast, 'alerts'), [both])
      }),
    )

    test(
      'of a job without labels has none, beside one of a job with labels',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { onDead: { queue: 'alerts' } })
        await mail.enqueueMany([{ payload: 1 }, { payload: 2, labels: c1 }, { payload: 3 }])
        const leases = await holdfast.claim(['mail'], { max: 3 })
        await Promise.all(leases.map((lease) => lease.dead(new Error('gone'))))
        const notices = await allJobs(holdfast, { queue: 'alerts' })
        const labels = notices.map(({ payload, labels }) => [(payload as { payload: number }).payload, labels])
        assert.deepEqual(Object.fromEntries(labels), { 1: {}, 2: c1, 3: {} })
      }),
    )

    test(
      'has labels of its own queue too; those of the dead job win, and what exceeds 8 is left out',
      inWorld(async ({ holdfast }) => {
        const labels = { customer: 'payload.id', origin: 'queue' }
        await define(holdfast, defineQueue('alerts', { labels }))
        const mail = holdfast.queue('mail', { onDead: { queue: 'alerts' } })
        const eight = Object.fromEntries(Array.from({ length: 8 }, (_, i) => [`l${i}`, `${i}`]))
        for (const labels of [both, { region: 'eu' }, eight]) {
          await mail.enqueue({ id: 'c2' }, { labels })
          await (await claimOne(holdfast, 'mail')).dead(new Error('gone'))
        }
        assert.deepEqual(await labelsOfAll(holdfast, 'alerts'), [
          { ...both, origin: 'mail' },
          { region: 'eu', customer: 'c2', origin: 'mail' },
          eight,
        ])
      }),
    )

    test(
      'of a notice has the labels of the first dead job, also if it cannot run',
      inWorld(async ({ holdfast }) => {
        await define(holdfast, defineQueue('pager', { limit: { key: 'nowhere', concurrency: 1 } }))
        await define(holdfast, defineQueue('alerts', { onDead: { queue: 'pager' } }))
        await holdfast.queue('mail', { onDead: { queue: 'alerts' } }).enqueue(1, { labels: both })
        await (await claimOne(holdfast, 'mail')).dead(new Error('gone'))
        await (await claimOne(holdfast, 'alerts')).dead(new Error('gone too'))
        const [notice] = await allJobs(holdfast, { queue: 'pager' })
        assert.deepEqual([notice?.state, notice?.labels], ['dead', both])
      }),
    )
  })
}

/** Each test ends with a recount of the label rows. */
function removed(inWorld: InWorld): void {
  describe('are gone with their job', () => {
    test(
      'that is deleted, alone or with others, in every state',
      inWorld(async ({ holdfast }) => {
        await oneOfEach(holdfast, 'mail')
        for (const { id, state } of await allJobs(holdfast, { queue: 'mail' }))
          if (state !== 'running') await holdfast.delete(id)
        await oneOfEach(holdfast, 'post')
        await holdfast.deleteAll({ queue: 'post' })
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'that is past its retention',
      inWorld(async ({ holdfast, clock }) => {
        await oneOfEach(holdfast, 'mail')
        await clock.advance(15 * day)
        while ((await holdfast.sweep()).pruned > 0);
        const left = await allJobs(holdfast)
        assert.ok(left.every(({ state }) => state !== 'done' && state !== 'dead' && state !== 'cancelled'))
        assert.ok(left.length > 0)
      }),
    )

    test(
      'that ends in a queue that keeps nothing, alone or with many others',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue('mail', { retain: { done: 0, dead: 0 } })
        await mail.enqueue(1, { labels: c1, startBefore: clock.now() + 1 })
        await clock.advance(2)
        await holdfast.sweep()
        const { id } = await mail.enqueue(2, { labels: both })
        await holdfast.cancel(id)
        await mail.enqueueMany(Array.from({ length: 40 }, (_, n) => ({ payload: n, labels: both })))
        const leases = await holdfast.claim(['mail'], { max: 40 })
        await Promise.all(leases.map((lease, i) => (i % 3 === 0 ? lease.dead(new Error('gone')) : lease.done(i))))
        await mail.enqueue(3, { labels: both, dedup: { key: 'a' }, idempotencyKey: 'a' })
        await (await claimOne(holdfast, 'mail')).done()
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'that is an item of a batch that is deleted',
      inWorld(async ({ holdfast, clock }) => {
        const items = Array.from({ length: 6 }, (_, n) => ({ queue: 'mail', payload: n, labels: both }))
        const batch = await holdfast.batch({ name: 'letters', concurrency: 6 }, items)
        const leases = await holdfast.claim(['mail'], { max: 3 })
        await leases[0]?.done()
        await leases[1]?.dead(new Error('gone'))
        await batch.delete()
        await leases[2]?.done()
        await clock.advance(hour)
        await holdfast.sweep()
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )
  })
}

function examined(inSql: InSqlWorld, { damage }: { readonly damage: readonly [remove: string, orphan: string] }): void {
  test(
    'the doctor finds label rows without a job and jobs without their label rows, and repairs both',
    inSql(async ({ holdfast, sql }) => {
      await holdfast
        .queue('mail')
        .enqueueMany([{ payload: 1, labels: both }, { payload: 2, labels: c1 }, { payload: 3 }])
      await (await claimOne(holdfast, 'mail')).done()
      const found = async (options = {}) => {
        const all = await holdfast.doctor(options)
        return all
          .filter(({ id }) => id === 'labels')
          .map(({ severity, repaired, facts }) => [severity, repaired, facts])
      }
      assert.deepEqual(await found(), [['fine', undefined, {}]])
      for (const statement of damage) await sql.query(statement.replaceAll('$schema', sql.schema))
      const facts = { rows: 1, jobs: 2 }
      assert.deepEqual(await found(), [['wrong', undefined, facts]])
      assert.deepEqual(await found({ full: true }), [['wrong', undefined, facts]])
      const fixed = await found({ fix: true })
      assert.deepEqual(fixed[0], ['fine', true, facts])
      assert.deepEqual(await found(), [['fine', undefined, {}]])
    }),
  )
}

function ofCallers(inSql: InSqlWorld): void {
  describe('in a caller’s transaction', () => {
    test(
      'are stored and found as elsewhere, and one that does not fit leaves the transaction usable',
      inSql(async ({ holdfast, another, sql }) => {
        await define(holdfast, ruled)
        const mail = (await another()).queue('mail')
        const own = await sql.begin()
        const { tx } = own
        await mail.enqueue({ customer: { id: 'c1' }, order: 7 }, { tx, labels: { region: 'eu' } })
        await mail.enqueue({ customer: { id: 'c1' } }, { tx, labels: { customer: 'mine' } })
        await mail.enqueue({ customer: { id: '' }, order: 1.5 }, { tx, limitKey: null })
        const facts = { queue: 'mail', label: 'customer', path: 'customer.id', bytes: 130 }
        const long = { customer: { id: tooLong } }
        await rejects(mail.enqueue(long, { tx }), 'INVALID_LABEL', facts)
        await rejects(mail.enqueue(long, { tx, limitKey: null }), 'INVALID_LABEL', facts)
        await rejects(
          mail.enqueueMany([
            { payload: 1, tx },
            { payload: long, tx },
          ]),
          'INVALID_LABEL',
          { ...facts, index: 1 },
        )
        await rejects(mail.enqueue({ customer: { id: 'a\0b' } }, { tx }), 'INVALID_LABEL')
        await (await another()).queue('other').enqueue(1, { tx, labels: c1 })
        await own.commit()
        assert.deepEqual(await labelsOfAll(holdfast), [
          { customer: 'c1', order: '7', region: 'eu' },
          { customer: 'mine' },
          {},
          c1,
        ])
      }),
    )

    test(
      'are gone with a transaction that is rolled back',
      inSql(async ({ holdfast, sql }) => {
        const own = await sql.begin()
        await holdfast.queue('mail').enqueue(1, { tx: own.tx, labels: c1 })
        await own.rollback()
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )
  })
}

function many(holdfast: Holdfast, options: { readonly delay?: string }): Promise<unknown> {
  return holdfast
    .queue('mail')
    .enqueueMany(Array.from({ length: 3 }, (_, n) => ({ payload: n, labels: c1, ...options }) as never))
}

/** Jobs with labels in every state but running: held, scheduled, ready, done, dead and cancelled. */
async function oneOfEach(holdfast: Holdfast, name: string): Promise<void> {
  const queue = holdfast.queue(name, { limit: { key: 'k', concurrency: 1 } })
  await queue.enqueue({}, { labels: both, limitKey: null })
  await (await claimOne(holdfast, name)).done()
  await queue.enqueue({}, { labels: both, limitKey: null })
  await (await claimOne(holdfast, name)).dead(new Error('gone'))
  const cancelled = await queue.enqueue({}, { labels: both, limitKey: null })
  await holdfast.cancel(cancelled.id)
  await queue.enqueue({}, { labels: both, limitKey: null, delay: '30d' })
  await queue.enqueueMany([1, 2].map(() => ({ payload: { k: 'a' }, labels: both })))
  assert.equal((await allJobs(holdfast, { queue: name, state: 'held' })).length, 1)
}

/** In the order in which they were enqueued. */
async function labelsOfAll(holdfast: Holdfast, queue?: string) {
  const jobs = await allJobs(holdfast, queue === undefined ? {} : { queue })
  return jobs.sort((a, b) => (a.id < b.id ? -1 : 1)).map(({ labels }) => labels)
}

/** A new process uses the definition. */
async function define(holdfast: Holdfast, definition: AnyDefinition): Promise<void> {
  const leases = await holdfast.claim([definition], { max: 1, lease: '1s' })
  await Promise.all(leases.map((lease) => lease.release()))
}
