// `explain`: why a job is not running, as one sentence, with the facts as fields.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { type AnyFlow, defineFlow } from '../../src/flow/definition.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { numbered } from './batches.ts'
import { claimOne, heard, minute, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function explainTests(inWorld: InWorld): void {
  describe('explain', () => {
    test(
      'a scheduled job: until when it waits, and why',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1m' })
        const { why, sentence, facts, state, queue } = await holdfast.explain(id)
        assert.deepEqual({ why, state, queue }, { why: 'scheduled', state: 'scheduled', queue: 'mail' })
        assert.equal(Number(facts.until), clock.now() + minute)
        assert.match(sentence, /^The job is scheduled for \d{4}-.*Z, 1 min from now\.$/)
        await clock.advance(minute)
        assert.match((await holdfast.explain(id)).sentence, /It is due, and the next sweep promotes it/)
        await holdfast.sweep()
        await (await claimOne(holdfast, 'mail')).retry(new Error('no luck'), { delay: '5s' })
        const failed = await holdfast.explain(id)
        assert.match(failed.sentence, /, 5 s from now, after attempt 1 failed: no luck\.$/)
        assert.equal(failed.facts.error?.message, 'no luck')
      }),
    )

    test(
      'a paused queue: by which caller, since when',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await holdfast.pause('mail', { by: 'ada' })
        const since = clock.now()
        await clock.advance(5_000)
        const { why, sentence, facts } = await holdfast.explain(id)
        assert.equal(why, 'queue-paused')
        assert.equal(sentence, 'Queue mail has been paused for 5 s (paused by ada).')
        assert.deepEqual([facts.by, Number(facts.since)], ['ada', since])
        const [info] = await holdfast.queues()
        assert.deepEqual([info?.pausedBy, Number(info?.pausedAt)], ['ada', since])
        await holdfast.pause('mail', { for: '1m' })
        const timed = await holdfast.explain(id)
        const until = new Date(clock.now() + 60_000)
        assert.equal(
          timed.sentence,
          `Queue mail has been paused for 5 s (paused by ada), until ${until.toISOString()}, 1 min from now.`,
        )
        assert.deepEqual(timed.facts.until, until)
        await clock.advance(60_000)
        assert.equal(
          (await holdfast.explain(id)).sentence,
          'Queue mail has been paused for 1 min (paused by ada). Its time is over, and the next sweep resumes the queue.',
        )
        await holdfast.resume('mail')
        assert.notEqual((await holdfast.explain(id)).why, 'queue-paused')
        assert.equal((await holdfast.queues())[0]?.pausedBy, null)
      }),
    )

    test(
      'a batch that is paused, or has no free slot',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b', concurrency: 1 }, numbered(2))
        const lease = await claimOne(holdfast, 'mail')
        const [waiting] = (await holdfast.jobs({ state: 'ready' })).jobs
        const id = waiting?.id as string
        const full = await holdfast.explain(id)
        assert.deepEqual([full.why, full.facts.admitted, full.facts.batch], ['batch-concurrency', 1, batch.id])
        assert.match(full.sentence, /may run 1 item at once, and 1 is running/)
        await batch.pause({ by: 'ada' })
        const paused = await holdfast.explain(id)
        assert.deepEqual([paused.why, paused.facts.by], ['batch-paused', 'ada'])
        assert.match(paused.sentence, /^Its batch b \(.*\) has been paused for .* \(paused by ada\)\.$/)
        await lease.done()
      }),
    )

    test(
      'a limit key without a free slot: which limit, which jobs use it, how many come before',
      inWorld(async ({ holdfast }) => {
        const mail = defineQueue<{ to: string }>('mail', { limit: { key: ({ to }) => to, concurrency: 1 } })
        const queue = holdfast.queue(mail)
        const holder = await queue.enqueue({ to: 'a' })
        await queue.enqueue({ to: 'a' })
        const { id } = await queue.enqueue({ to: 'a' })
        const { why, sentence, facts } = await holdfast.explain(id)
        assert.equal(why, 'key-concurrency')
        assert.deepEqual([facts.limitKey, facts.admitted, facts.holders, facts.ahead], ['a', 1, [holder.id], 1])
        assert.equal(
          sentence,
          `Its limit key a has 1 slot; 1 is in use (${holder.id}), and 1 job of this key is ahead of it.`,
        )
      }),
    )

    test(
      'a limit key whose starts are used up: until when',
      inWorld(async ({ holdfast, clock }) => {
        const limit = { key: ({ to }: { to: string }) => to, rate: { count: 1, per: '1m' as const } }
        const mail = defineQueue<{ to: string }>('mail', { limit })
        await holdfast.queue(mail).enqueue({ to: 'a' })
        const { id } = await holdfast.queue(mail).enqueue({ to: 'a' })
        await (await claimOne(holdfast, mail)).done()
        const { why, sentence, facts } = await holdfast.explain(id)
        assert.equal(why, 'key-rate')
        assert.equal(sentence, 'Its limit key a allows 1 start in 1 min; the next is possible in 1 min.')
        assert.equal(Number(facts.until), clock.now() + minute)
      }),
    )

    test(
      'a limit key whose starts are partly used and partly reserved',
      inWorld(async ({ holdfast, clock }) => {
        const limit = { key: ({ to }: { to: string }) => to, rate: { count: 2, per: '1m' as const } }
        const queue = holdfast.queue(defineQueue<{ to: string }>('mail', { limit }))
        await queue.enqueue({ to: 'a' })
        await (await claimOne(holdfast, 'mail')).done()
        const until = clock.now() + minute
        await clock.advance(1_000)
        await queue.enqueue({ to: 'a' })
        const { id } = await queue.enqueue({ to: 'a' })
        const { why, facts } = await holdfast.explain(id)
        assert.deepEqual([why, Number(facts.until)], ['key-rate', until])
      }),
    )

    test(
      'a queue without a free slot, or whose starts are used up',
      inWorld(async ({ holdfast, clock }) => {
        const one = defineQueue<number>('one', { limit: { concurrency: 1 } })
        await holdfast.queue(one).enqueue(1)
        const second = await holdfast.queue(one).enqueue(2)
        await claimOne(holdfast, one)
        const full = await holdfast.explain(second.id)
        assert.deepEqual([full.why, full.facts.admitted], ['queue-concurrency', 1])
        const slow = defineQueue<number>('slow', { limit: { rate: { count: 1, per: '10s' } } })
        await holdfast.queue(slow).enqueue(1)
        const next = await holdfast.queue(slow).enqueue(2)
        await claimOne(holdfast, slow)
        const used = await holdfast.explain(next.id)
        assert.deepEqual([used.why, Number(used.facts.until)], ['queue-rate', clock.now() + 10_000])
      }),
    )

    test(
      'a queue without a worker; a worker that starts is known, and one that stops is removed',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { priority: 9 })
        const alone = await holdfast.explain(id)
        assert.deepEqual([alone.why, alone.facts.workers], ['no-worker', 0])
        assert.equal(alone.sentence, 'No worker of queue mail has reported within the last minute.')
        await holdfast.pause('mail')
        const other = await another()
        const worker = other.work('mail', async () => undefined, { concurrency: 4 })
        const others = other.work('post', async () => undefined)
        await known(holdfast, 2)
        const [info] = (await holdfast.workers()).filter(({ queues }) => queues?.includes('mail'))
        assert.deepEqual([info?.name, info?.concurrency, info?.pid], [worker.name, 4, process.pid])
        await worker.stop()
        await others.stop()
        assert.deepEqual(await holdfast.workers(), [])
        await holdfast.resume('mail')
      }),
    )

    test(
      'a ready job: how many come before it',
      inWorld(async ({ holdfast, another }) => {
        const worker = (await another()).work('*', () => new Promise(() => undefined), { concurrency: 1, unwind: 0 })
        const started = heard(holdfast, 'job.enqueued')
        await holdfast.queue('busy').enqueue(0)
        await started
        await known(holdfast, 1)
        while ((await holdfast.stats('busy')).running === 0) await new Promise((resolve) => setTimeout(resolve, 5))
        const ids: string[] = []
        for (const n of [1, 2, 3]) ids.push((await holdfast.queue('mail').enqueue(n)).id)
        const last = await holdfast.explain(ids[2] as string)
        assert.deepEqual([last.why, last.facts.ahead, last.facts.workers], ['behind', 2, 1])
        assert.equal(last.sentence, 'The job is ready; 2 jobs are ahead of it, for 1 worker.')
        assert.equal((await holdfast.explain(ids[0] as string)).why, 'next')
        await worker.stop({ grace: 0 })
      }),
    )

    test(
      'a ready job: jobs of a more urgent priority come before it too',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('late', { priority: 7 })
        for (const priority of [0, 5, 5]) await holdfast.queue('mail').enqueue(priority, { priority })
        await holdfast.queue('mail').enqueue('later', { priority: 8 })
        assert.equal((await holdfast.explain(id)).facts.ahead, 3)
        await claimOne(holdfast, 'mail')
        assert.equal((await holdfast.explain(id)).facts.ahead, 2)
      }),
    )

    test(
      'a job that is held although a slot is free: the next sweep admits it',
      inWorld(async ({ holdfast }) => {
        const key = ({ to }: { to: string }) => to
        const one = defineQueue<{ to: string }>('mail', { limit: { key, concurrency: 1 } })
        await holdfast.queue(one).enqueue({ to: 'a' })
        const { id } = await holdfast.queue(one).enqueue({ to: 'a' })
        const raised = defineQueue<{ to: string }>('mail', { limit: { key, concurrency: 3 } })
        await holdfast.queue(raised).enqueue({ to: 'b' })
        const more = await holdfast.explain(id)
        assert.equal(more.why, 'admission')
        assert.equal(more.sentence, 'Its limit key a has a free slot, and the next sweep admits the job.')
        const without = defineQueue<{ to: string }>('mail', { limit: null })
        await holdfast.queue(without).enqueue({ to: 'b' })
        assert.equal((await holdfast.explain(id)).why, 'admission')
        await holdfast.sweep()
        assert.equal((await holdfast.explain(id)).why, 'no-worker')
      }),
    )

    test(
      'a running job: where, since when, and whether a cancel was requested',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await claimOne(holdfast, 'mail', { worker: 'w1', lease: '1m' })
        const since = clock.now()
        await clock.advance(3_000)
        const runs = await holdfast.explain(id)
        assert.deepEqual([runs.why, runs.facts.by, Number(runs.facts.since)], ['running', 'w1', since])
        assert.equal(runs.sentence, 'The job has been running on worker w1 for 3 s, in attempt 1 of 5.')
        await holdfast.cancel(id)
        assert.match((await holdfast.explain(id)).sentence, /A cancel was requested\.$/)
        await clock.advance(2 * minute)
        assert.match(
          (await holdfast.explain(id)).sentence,
          /lease has expired, and the next sweep makes it cancelled\.$/,
        )
      }),
    )

    test(
      'a running job whose lease has expired in its last attempt: the next sweep makes it dead',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
        await claimOne(holdfast, 'mail', { worker: 'w1', lease: '1m' })
        await clock.advance(2 * minute)
        const { sentence } = await holdfast.explain(id)
        assert.match(
          sentence,
          /in attempt 1 of 1\. Its lease has expired\. This was its last attempt, and the next sweep/,
        )
        await holdfast.sweep()
        assert.equal((await holdfast.explain(id)).why, 'dead')
      }),
    )

    test(
      'a job that waits in an inbox: which inbox, and until when it can be accepted',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const ids = new Map<string, string>()
        for (const inbox of ['a', 'b', 'b-2'])
          for (const n of [1, 2]) ids.set(`${inbox}/${n}`, (await holdfast.queue('mail').enqueue(inbox)).id)
        const { id: snoozed } = await holdfast.queue('mail').enqueue('snooze')
        const worker = other.work('mail', async (job) =>
          job.payload === 'snooze' ? job.snooze('1h') : job.offer(1, { inbox: String(job.payload), ttl: '1h' }),
        )
        while ((await holdfast.stats('mail')).scheduled < 7) await new Promise((resolve) => setTimeout(resolve, 5))
        await worker.stop()
        for (const [place, id] of ids) {
          const { why, sentence, facts } = await holdfast.explain(id)
          const [inbox = ''] = place.split('/')
          const pickup = await holdfast.inbox(inbox).get(id)
          assert.deepEqual([why, facts.inbox, facts.until], ['offered', inbox, pickup?.expiresAt])
          assert.match(
            sentence,
            /^The job is offered in inbox [-a-z2]+ until .*Z, .* from now: it is done when the offer is/,
          )
        }
        assert.equal((await holdfast.explain(snoozed)).why, 'scheduled')
        const last = ids.get('b-2/2') as string
        await (await holdfast.inbox('b-2').get(last))?.accept()
        assert.equal((await holdfast.explain(last)).why, 'done')
      }),
    )

    test(
      'an item of a cancelled batch: the reason of the cancel',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b' }, numbered(1))
        const [item] = (await holdfast.jobs({ state: 'ready' })).jobs
        await batch.cancel({ by: 'ada', reason: 'wrong list' })
        const { sentence, facts } = await holdfast.explain(item?.id as string)
        assert.match(sentence, /Its batch b \(.*\) was cancelled \(wrong list\)/)
        assert.deepEqual([facts.batch, facts.reason], [batch.id, 'wrong list'])
      }),
    )

    flowTests(inWorld)

    test(
      'an ended job: done, dead with its last error, cancelled; JOB_NOT_FOUND for an unknown one',
      inWorld(async ({ holdfast, clock }) => {
        const [done, dead, cancelled] = await holdfast
          .queue('mail')
          .enqueueMany([1, 2, 3].map((payload) => ({ payload })))
        await (await claimOne(holdfast, 'mail')).done()
        await (await claimOne(holdfast, 'mail')).dead(new Error('no such user.'))
        await holdfast.cancel(cancelled?.id as string)
        await clock.advance(2_000)
        const explained = async (id: string | undefined) => {
          const { why, sentence } = await holdfast.explain(id as string)
          return [why, sentence]
        }
        assert.deepEqual(await explained(done?.id), ['done', 'The job is done: it ended 2 s ago in attempt 1.'])
        assert.deepEqual(await explained(dead?.id), [
          'dead',
          'The job died 2 s ago: attempt 1 of 5 failed permanently: no such user.',
        ])
        assert.deepEqual(await explained(cancelled?.id), ['cancelled', 'The job was cancelled 2 s ago.'])
        await rejects(holdfast.explain('01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f81'), 'JOB_NOT_FOUND')
        await rejects(holdfast.explain('nonsense'), 'INVALID_ID')
      }),
    )
  })
}

function flowTests(inWorld: InWorld): void {
  const explained = async (holdfast: Holdfast, flow: AnyFlow) => {
    const parked = heard(holdfast, 'flow.parked')
    const { id } = await holdfast.start(flow, null)
    await parked
    const { why, sentence, facts, state } = await holdfast.explain(id)
    assert.equal(state, 'scheduled')
    return { id, why, sentence, facts }
  }

  test(
    'a flow run that sleeps: in which step, and until when',
    inWorld(async ({ holdfast, clock }) => {
      const flow = defineFlow('flow', {}, (flow) => flow.sleep('cool down', '10m'))
      const worker = holdfast.work(flow)
      const { id, why, sentence, facts } = await explained(holdfast, flow)
      const until = facts.until as Date
      assert.ok(Math.abs(until.getTime() - clock.now() - 10 * minute) < 5_000)
      assert.deepEqual([why, facts.step], ['sleeping', 'cool down'])
      assert.match(sentence, /^It sleeps in step `cool down` until [^,]+, (10|9(\.\d+)?) min.* from now\.$/)
      assert.ok(sentence.includes(until.toISOString()))
      await worker.stop()
      await clock.advance(11 * minute)
      assert.match((await holdfast.explain(id)).sentence, /, which has passed: the next sweep promotes it\.$/)
    }),
  )

  test(
    'a flow run that waits for a signal: which, of which key, and until when',
    inWorld(async ({ holdfast }) => {
      const timed = defineFlow('timed', {}, (flow) => flow.signal('verdict', { timeout: '7d' }))
      const endless = defineFlow('endless', {}, (flow) => flow.signal('paid', { key: 'order-17' }))
      await using _ = holdfast.work([[timed], [endless]])
      const first = await explained(holdfast, timed)
      assert.match(first.sentence, /^It waits for signal `verdict` until \d{4}-[^,]+Z, [67].* from now\.$/)
      assert.deepEqual([first.why, first.facts.signal], ['awaiting-signal', 'verdict'])
      const second = await explained(holdfast, endless)
      assert.equal(second.sentence, 'It waits for signal `paid` of key `order-17`.')
      assert.deepEqual([second.facts.key, second.facts.until], ['order-17', undefined])
    }),
  )

  test(
    'a flow run that waits for its child: which one, and the state of the child',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, (flow) => flow.call('score', 'scoring', 1))
      await using _ = holdfast.work(flow)
      const { id, why, sentence, facts } = await explained(holdfast, flow)
      const { child } = facts
      const { jobs } = await holdfast.jobs({ queue: 'scoring' })
      assert.deepEqual([why, child], ['awaiting-child', jobs[0]?.id])
      assert.equal(sentence, `It waits for its child ${child} of queue scoring (step \`score\`), which is ready.`)
      const lease = await claimOne(holdfast, 'scoring')
      assert.match((await holdfast.explain(id)).sentence, /, which is running\.$/)
      await lease.done()
    }),
  )

  test(
    'a flow run whose step is tried again later: when, and why the last attempt failed',
    inWorld(async ({ holdfast }) => {
      const fail = () => Promise.reject(new Error('no luck.'))
      const flow = defineFlow('flow', {}, (flow) => flow.step('extract', fail, { backoff: { base: '1m', jitter: 0 } }))
      await using _ = holdfast.work(flow)
      const { why, sentence, facts } = await explained(holdfast, flow)
      assert.deepEqual([why, facts.error?.message], ['step-retry', 'no luck.'])
      assert.match(
        sentence,
        /^Step `extract` is tried again at \d{4}-[^,]+Z, .* from now, after attempt 1 failed: no luck\.$/,
      )
    }),
  )

  test(
    'a flow run with several waits: the one that ends first comes first',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, (flow) =>
        Promise.race([flow.signal('verdict'), flow.sleep('late', '2h'), flow.sleep('soon', '1h'), flow.signal('stop')]),
      )
      await using _ = holdfast.work(flow)
      const { sentence, facts } = await explained(holdfast, flow)
      assert.match(
        sentence,
        /^It sleeps in step `soon` until .*; it sleeps in step `late` until .*; it has 1 more wait\.$/,
      )
      assert.deepEqual(facts.steps, ['soon', 'late', 'signal:verdict', 'signal:stop'])
    }),
  )

  test(
    'a flow run whose own attempt has failed: when it is tried again',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, async (flow) => {
        await flow.step('first', () => 1)
        throw new Error('no luck')
      })
      const failed = heard(holdfast, 'job.retrying')
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await failed
      assert.match(
        (await holdfast.explain(id)).sentence,
        /^The job is scheduled for .* after attempt 1 failed: no luck\.$/,
      )
    }),
  )
}

/** Waits until so many workers have written their presence. */
async function known(holdfast: Holdfast, count: number): Promise<void> {
  while ((await holdfast.workers()).length < count) await new Promise((resolve) => setTimeout(resolve, 5))
}
