// Batches: how they are submitted, what they count, when they are finished.
import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { jsonLines, toJsonLines } from '../../src/batch/json-lines.ts'
import type { BatchItem } from '../../src/batch/options.ts'
import type { BatchProgress } from '../../src/batch/progress.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { defineWebhooks } from '../../src/webhook/webhooks.ts'
import { allJobs, claimOne, day, heard, minute, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function batchTests(inWorld: InWorld): void {
  describe('batches', () => {
    describe('submission', () => {
      test(
        'an array is accepted: every item is a job of its queue, with its options',
        inWorld(async ({ holdfast }) => {
          const items = [
            { queue: 'mail', payload: 1, priority: 2, headers: { from: 'me' } },
            { queue: defineQueue<number>('post'), payload: 2, delay: '1m' as const },
          ]
          const batch = await holdfast.batch({ name: 'letters' }, items)
          const [first, second] = await Array.fromAsync(batch.items())
          assert.ok(first && second)
          assert.deepEqual([first.queue, second.queue].toSorted(), ['mail', 'post'])
          const mail = first.queue === 'mail' ? first : second
          assert.deepEqual([mail.priority, mail.headers, mail.batch], [2, { from: 'me' }, batch.id])
          const { total, waiting, state, name } = await batch.progress()
          assert.deepEqual({ total, waiting, state, name }, { total: 2, waiting: 2, state: 'queued', name: 'letters' })
          assert.equal((await claimOne(holdfast, 'mail')).job.batch, batch.id)
        }),
      )

      test(
        'iterables, async iterables and JSON lines are accepted',
        inWorld(async ({ holdfast }) => {
          const lines = '{"queue":"mail","payload":1}\n\n{"queue":"mail","payload":2}\r\n'
          const sources = [
            new Set(numbered(2)),
            (function* () {
              yield* numbered(2)
            })(),
            (async function* () {
              yield* numbered(2)
            })(),
            jsonLines<BatchItem>(lines),
            jsonLines<BatchItem>(Readable.from([Buffer.from(lines.slice(0, 20)), Buffer.from(lines.slice(20))])),
          ]
          for (const source of sources) {
            const batch = await holdfast.batch({ name: 'lines' }, source)
            assert.equal((await batch.progress()).total, 2)
          }
        }),
      )

      test(
        'items are read in chunks as needed, never more than two chunks ahead of what is on disk',
        inWorld(async ({ holdfast }) => {
          let pulled = 0
          let most = 0
          const items = async function* () {
            for (let n = 0; n < 5_000; n++) {
              pulled += 1
              if (n % 250 === 0) most = Math.max(most, pulled - (await holdfast.stats()).ready)
              yield { queue: 'mail', payload: n }
            }
          }
          const batch = await holdfast.batch({ name: 'many' }, items())
          assert.ok(most <= 2_000, `${most} items were pulled and not on disk`)
          assert.equal((await batch.progress()).total, 5_000)
          const leases = await holdfast.claim(['mail'], { max: 10 })
          assert.deepEqual(
            leases.map(({ job }) => job.payload),
            [0, 1, 2],
            'in the order given, three at a time',
          )
        }),
      )

      test(
        'under a key it is repeated after a crash: stored items are skipped, the rest is added, none twice',
        inWorld(async ({ holdfast, another }) => {
          const crash = new Error('power loss')
          const broken = async function* () {
            for (let n = 0; n < 2_500; n++) {
              if (n === 2_300) throw crash
              yield { queue: 'mail', payload: n }
            }
          }
          await assert.rejects(holdfast.batch({ name: 'import', key: 'march' }, broken()), crash)
          const half = await holdfast.getBatch({ key: 'march' })
          assert.ok(half)
          const { state, isOpen, total } = await half.progress()
          assert.deepEqual({ state, isOpen, total }, { state: 'open', isOpen: true, total: 2_000 })
          const other = await another()
          const whole = await other.batch({ name: 'import', key: 'march' }, numbered(2_500))
          assert.equal(whole.id, half.id)
          const progress = await whole.progress()
          assert.deepEqual([progress.total, progress.isOpen], [2_500, false])
          const payloads = (await allJobs(holdfast, { queue: 'mail' })).map(({ payload }) => payload as number)
          assert.deepEqual(new Set(payloads).size, 2_500)
          const again = await other.batch({ name: 'import', key: 'march' }, numbered(2_500))
          assert.equal((await again.progress()).total, 2_500)
        }),
      )

      test(
        'two submissions under one key at the same time make one batch with every item once',
        inWorld(async ({ holdfast, another }) => {
          const other = await another()
          const made = await Promise.all(
            [holdfast, other, holdfast].map((client) => client.batch({ name: 'i', key: 'k' }, numbered(1_500))),
          )
          assert.equal(new Set(made.map(({ id }) => id)).size, 1)
          assert.equal((await made[0]?.progress())?.total, 1_500)
          assert.equal((await holdfast.stats('mail')).ready, 1_500)
        }),
      )

      test(
        'while others are added, and again after a crash, every item of both is stored once',
        inWorld(async ({ holdfast, another }) => {
          const other = await another()
          const items = async function* (upTo: number) {
            for (let n = 0; n < 2_500; n++) {
              if (n === upTo) throw new Error('power loss')
              if (n % 1_100 === 500) await (await other.getBatch({ key: 'k' }))?.add([{ queue: 'post', payload: n }])
              yield { queue: 'mail', payload: n }
            }
          }
          await assert.rejects(holdfast.batch({ name: 'i', key: 'k' }, items(2_300)), /power loss/)
          const batch = await other.batch({ name: 'i', key: 'k' }, items(2_500))
          const payloads = (await allJobs(holdfast, { queue: 'mail' })).map(({ payload }) => payload as number)
          assert.deepEqual(
            payloads.toSorted((a, b) => a - b),
            numbered(2_500).map(({ payload }) => payload),
          )
          assert.equal((await batch.progress()).total, 2_504)
        }),
      )

      test(
        'an invalid item is refused with its number, and the batch stays open',
        inWorld(async ({ holdfast }) => {
          const mail = defineQueue('mail', { payload: z.object({ to: z.string() }) })
          const items = [
            { queue: mail, payload: { to: 'a' } },
            { queue: mail, payload: { to: 1 as never } },
          ]
          await rejects(holdfast.batch({ name: 'wrong', key: 'w' }, items), 'INVALID_PAYLOAD', { index: 1 })
          assert.equal((await (await holdfast.getBatch({ key: 'w' }))?.progress())?.state, 'open')
          await rejects(holdfast.batch({ name: 'wrong' }, [7] as never), 'INVALID_OPTION', { index: 0 })
          await rejects(holdfast.batch({ name: 'wrong' }, 'text' as never), 'INVALID_OPTION')
          await rejects(holdfast.batch({ name: 'wrong' }, jsonLines('{"queue":"mail"}\n{oops')), 'INVALID_PAYLOAD', {
            line: 2,
          })
          await rejects(holdfast.batch({ name: '' }), 'INVALID_OPTION')
          await rejects(holdfast.batch({ name: 'x', concurrency: 0 }), 'INVALID_OPTION')
          await rejects(holdfast.batch({ name: 'x', stopWhenFailed: 2 }), 'INVALID_OPTION')
          await rejects(holdfast.batch({ name: 'x', onComplete: { queue: 'a', payload: 7 } }), 'INVALID_OPTION')
        }),
      )

      test(
        'the answer says whether this call made the batch or its key was used before',
        inWorld(async ({ holdfast, another }) => {
          const items = [{ queue: 'mail', payload: 1 }]
          const first = await holdfast.batch({ name: 'b', key: 'k' }, items)
          const again = await (await another()).batch({ name: 'other', key: 'k' }, items)
          const found = await holdfast.getBatch({ key: 'k' })
          const unkeyed = await holdfast.batch({ name: 'b' }, items)
          assert.deepEqual([first.created, again.created, found?.created, unkeyed.created], [true, false, false, true])
          assert.equal(again.id, first.id)
        }),
      )

      test(
        'entries whose dedup key has a holder do not become items',
        inWorld(async ({ holdfast }) => {
          await holdfast.queue('mail').enqueue(0, { dedup: { key: 'a' } })
          const batch = await holdfast.batch({ name: 'b', open: true })
          const items = ['a', 'b', 'b'].map((key) => ({ queue: 'mail', payload: key, dedup: { key } }))
          assert.deepEqual(await batch.add(items), { added: 1, duplicates: 2 })
          assert.equal((await batch.progress()).total, 1)
        }),
      )
    })

    describe('counts', () => {
      test(
        'items are counted exactly, at every step',
        inWorld(async ({ holdfast, clock }) => {
          const items = [{ queue: 'mail', payload: 1, delay: '1s' as const, attempts: 2 }]
          const batch = await holdfast.batch({ name: 'one' }, items)
          const [{ id = '' } = {}] = await Array.fromAsync(batch.items())
          const at = async (where: 'waiting' | 'running' | 'done' | 'dead' | 'cancelled') =>
            assert.deepEqual(counts(await batch.progress()), { ...none, [where]: 1 })
          const pass = async (ms: number) => {
            await clock.advance(ms)
            await holdfast.sweep()
          }
          await at('waiting')
          await pass(1_000)
          await at('waiting')
          const first = await claimOne(holdfast, 'mail')
          await at('running')
          await first.release()
          await at('waiting')
          await (await claimOne(holdfast, 'mail')).snooze('1s')
          await at('waiting')
          await pass(1_000)
          await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
          await at('waiting')
          await claimOne(holdfast, 'mail', { lease: '1m' })
          await pass(2 * minute)
          await at('dead')
          await holdfast.requeue(id)
          await at('waiting')
          const last = await claimOne(holdfast, 'mail')
          await holdfast.cancel(id)
          await at('running')
          await last.release()
          await at('cancelled')
        }),
      )

      test(
        'outcomes, warnings and costs are counted by name',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'articles', concurrency: 10 }, numbered(5))
          const leases = await holdfast.claim(['mail'], { max: 5 })
          await leases[0]?.done('a', undefined, { outcome: 'saved', costs: { tokens: 10 } })
          await leases[1]?.done('b', undefined, {
            outcome: 'saved',
            warning: 'consent-wall',
            costs: { tokens: 5, usd: 1 },
          })
          await leases[2]?.done('c', undefined, { outcome: 'duplicate' })
          await leases[3]?.done('d')
          await leases[4]?.dead(new Error('no'), undefined, { costs: { tokens: 1 } })
          const { outcomes, warnings, costs, done, dead } = await batch.progress()
          assert.deepEqual(
            { outcomes, warnings, costs, done, dead },
            {
              outcomes: { saved: 2, duplicate: 1 },
              warnings: { 'consent-wall': 1 },
              costs: { tokens: 16, usd: 1 },
              done: 4,
              dead: 1,
            },
          )
          const job = await readJob(holdfast, leases[1]?.job.id as string)
          assert.deepEqual([job.outcome, job.warning, job.costs], ['saved', 'consent-wall', { tokens: 5, usd: 1 }])
        }),
      )

      test(
        'outcome and warning of a deleted item no longer count; its costs stay',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'articles' }, numbered(4))
          const leases = await holdfast.claim(['mail'], { max: 4 })
          const said = [
            { outcome: 'saved' },
            { outcome: 'saved', warning: 'late' },
            { outcome: 'lost', warning: 'late' },
          ]
          for (const [i, annotations] of said.entries())
            await leases[i]?.done(undefined, undefined, { ...annotations, costs: { usd: 1 } })
          const counted = async () => {
            const { outcomes, warnings, costs } = await batch.progress()
            return { outcomes, warnings, costs }
          }
          await holdfast.delete(leases[1]?.job.id as string)
          const rest = { outcomes: { saved: 1, lost: 1 }, warnings: { late: 1 }, costs: { usd: 3 } }
          assert.deepEqual(await counted(), rest)
          await holdfast.deleteAll({ queue: 'mail', state: 'done' })
          assert.deepEqual(await counted(), { outcomes: {}, warnings: {}, costs: { usd: 3 } })
        }),
      )

      test(
        'the costs of every attempt count, also of a failed one, and are in the history',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'costly' }, numbered(1))
          const first = await claimOne(holdfast, 'mail')
          await first.retry(new Error('no'), { delay: 0, costs: { tokens: 3 } })
          assert.deepEqual((await batch.progress()).costs, { tokens: 3 })
          await (await claimOne(holdfast, 'mail')).done(1, undefined, { costs: { tokens: 4 } })
          assert.deepEqual((await batch.progress()).costs, { tokens: 7 })
          const { history } = await readJob(holdfast, first.job.id)
          assert.deepEqual(
            history.map(({ costs }) => costs),
            [{ tokens: 3 }, { tokens: 4 }],
          )
        }),
      )

      test(
        'the costs of an attempt count if its effects could not be applied',
        inWorld(async ({ holdfast }) => {
          const taken = await holdfast.queue('post').enqueue(0)
          const batch = await holdfast.batch({ name: 'costly' }, numbered(1))
          const lease = await claimOne(holdfast, 'mail')
          const effects = { enqueue: [{ queue: 'post', payload: 1, id: taken.id }] }
          await rejects(lease.done(1, effects, { costs: { tokens: 3 } }), 'DUPLICATE_JOB_ID')
          const { history } = await readJob(holdfast, lease.job.id)
          assert.deepEqual(history[0]?.costs, { tokens: 3 })
          assert.deepEqual((await batch.progress()).costs, { tokens: 3 })
        }),
      )

      test(
        'the costs of earlier attempts count after a requeue',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'costly' }, numbered(1))
          const lease = await claimOne(holdfast, 'mail')
          await lease.dead(new Error('no'), undefined, { costs: { tokens: 3 } })
          await holdfast.requeue(lease.job.id)
          const { history } = await readJob(holdfast, lease.job.id)
          assert.deepEqual(history[0]?.costs, { tokens: 3 })
          assert.deepEqual((await batch.progress()).costs, { tokens: 3 })
        }),
      )

      test(
        'outcomes, warnings and costs that handlers report are counted',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'handled' }, numbered(4))
          const worker = holdfast.work<number>('mail', async (job) => {
            assert.equal(job.batch, batch.id)
            job.cost('tokens', 1)
            job.cost('tokens', 2)
            if (job.payload === 3) return 'plain'
            return job.outcome(job.payload === 0 ? 'duplicate' : 'saved', job.payload, { warning: 'slow' })
          })
          const { outcomes, warnings, costs, done } = await batch.finished({ timeout: '10s' })
          assert.deepEqual(
            { outcomes, warnings, costs, done },
            {
              outcomes: { duplicate: 1, saved: 2 },
              warnings: { slow: 3 },
              costs: { tokens: 12 },
              done: 4,
            },
          )
          await worker.stop()
        }),
      )

      test(
        'a pruned item still counts',
        inWorld(async ({ holdfast, clock }) => {
          const mail = defineQueue<number>('mail', { retain: { done: 0, dead: '1h' } })
          const items = [1, 2].map((payload) => ({ queue: mail, payload }))
          const batch = await holdfast.batch({ name: 'short' }, items)
          await (await claimOne(holdfast, mail)).done()
          await (await claimOne(holdfast, mail)).dead(new Error('no'))
          await clock.advance(2 * 60 * minute)
          await holdfast.sweep()
          const { done, dead, state } = await batch.progress()
          assert.deepEqual({ done, dead, state }, { done: 1, dead: 1, state: 'done' })
          assert.deepEqual(await Array.fromAsync(batch.items()), [])
        }),
      )

      test(
        'a deleted item no longer counts, whether it is deleted alone or with others',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'less' }, numbered(3))
          const [first] = await Array.fromAsync(batch.items())
          await holdfast.delete(first?.id as string)
          assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 2 })
          await holdfast.deleteAll({ queue: 'mail' })
          await holdfast.sweep()
          const { state, total } = await batch.progress()
          assert.deepEqual({ state, total }, { state: 'done', total: 0 })
        }),
      )
    })

    describe('running', () => {
      test(
        'three items run at once by default, in all processes together',
        inWorld(async ({ holdfast, another }) => {
          const other = await another()
          await holdfast.batch({ name: 'default' }, numbered(10))
          const first = await holdfast.claim(['mail'], { max: 2 })
          const second = await other.claim(['mail'], { max: 10 })
          assert.deepEqual([first.length, second.length], [2, 1])
          assert.deepEqual(await other.claim('*', { max: 10 }), [])
          await first[0]?.done()
          assert.equal((await other.claim('*', { max: 10 })).length, 1)
        }),
      )

      test(
        'all items run at once if concurrency is Infinity',
        inWorld(async ({ holdfast }) => {
          const { id } = await holdfast.batch({ name: 'all', concurrency: Number.POSITIVE_INFINITY }, numbered(50))
          assert.equal((await (await holdfast.getBatch(id))?.progress())?.concurrency, null)
          assert.equal((await holdfast.claim(['mail'], { max: 100 })).length, 50)
        }),
      )

      test(
        'items run beside plain jobs and other batches of the same queue, and none of them starves',
        inWorld(async ({ holdfast }) => {
          const options = { concurrency: Number.POSITIVE_INFINITY }
          const big = await holdfast.batch({ name: 'big', ...options }, numbered(3_000))
          const small = await holdfast.batch({ name: 'small', ...options }, numbered(3))
          await holdfast.queue('mail').enqueueMany([{ payload: 'plain' }])
          for (let claims = 0; claims < 60; claims++) {
            for (const lease of await holdfast.claim(['mail'], { max: 5 })) await lease.done()
          }
          assert.equal((await small.progress()).done, 3)
          assert.ok((await big.progress()).done > 0)
          const plain = await allJobs(holdfast, { queue: 'mail', state: 'done' })
          assert.ok(plain.some(({ payload }) => payload === 'plain'))
        }),
      )

      test(
        'items run in the order given',
        inWorld(async ({ holdfast }) => {
          await holdfast.batch({ name: 'ordered', concurrency: 1 }, numbered(5))
          for (let n = 0; n < 5; n++) {
            const lease = await claimOne(holdfast, 'mail')
            assert.equal(lease.job.payload, n)
            await lease.done()
          }
        }),
      )

      test(
        'key limits of the queue hold for items too',
        inWorld(async ({ holdfast }) => {
          const mail = defineQueue<{ to: string }>('mail', { limit: { key: ({ to }) => to, concurrency: 1 } })
          const items = ['a', 'a', 'b'].map((to) => ({ queue: mail, payload: { to } }))
          const batch = await holdfast.batch({ name: 'keyed' }, items)
          const leases = await holdfast.claim([mail], { max: 10 })
          assert.deepEqual(leases.map(({ job }) => (job.payload as { to: string }).to).toSorted(), ['a', 'b'])
          assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 1, running: 2 })
          for (const lease of leases) await lease.done()
          await (await claimOne(holdfast, mail)).done()
          assert.equal((await batch.progress()).state, 'done')
        }),
      )
    })

    describe('completion', () => {
      test(
        'a batch is finished when every item has ended, and enqueues one job with the facts',
        inWorld(async ({ holdfast, clock }) => {
          const onComplete = { queue: 'completions', payload: { team: 'sales' }, priority: 1 }
          const batch = await holdfast.batch({ name: 'b', onComplete }, numbered(2))
          await clock.advance(1_000)
          const [first, second] = await holdfast.claim(['mail'], { max: 2 })
          assert.equal((await batch.progress()).state, 'running')
          await clock.advance(1_000)
          await first?.done()
          assert.deepEqual(await holdfast.claim(['completions']), [])
          await second?.dead(new Error('no'))
          const { state, startedAt, finishedAt, round } = await batch.progress()
          assert.deepEqual({ state, round }, { state: 'done', round: 1 })
          assert.deepEqual([Number(startedAt), Number(finishedAt)], [clock.now() - 1_000, clock.now()])
          const completion = await claimOne(holdfast, 'completions')
          assert.deepEqual(completion.job.payload, { team: 'sales', batchId: batch.id, state: 'done', round: 1 })
          assert.equal(completion.job.priority, 1)
          await holdfast.sweep()
          assert.deepEqual(await holdfast.claim(['completions']), [])
        }),
      )

      test(
        'a batch that is closed without items is finished at once',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'empty', onComplete: { queue: 'completions' } }, [])
          assert.equal((await batch.progress()).state, 'done')
          assert.deepEqual((await claimOne(holdfast, 'completions')).job.payload, {
            ...{ batchId: batch.id, state: 'done', round: 1 },
          })
        }),
      )

      test(
        'an open batch is never finished: items may be added',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'open', open: true }, numbered(1))
          await (await claimOne(holdfast, 'mail')).done()
          assert.equal((await batch.progress()).state, 'open')
          await batch.add(numbered(1))
          assert.equal((await batch.close()).state, 'running')
          await (await claimOne(holdfast, 'mail')).done()
          assert.equal((await batch.progress()).state, 'done')
          await rejects(batch.add(numbered(1)), 'INVALID_STATE')
        }),
      )

      test(
        'a webhook gets the facts in its body',
        inWorld(async ({ holdfast }) => {
          const webhooks = defineWebhooks({ secret: 'a secret that is long enough to be one' })
          const onComplete = webhooks.effect('https://example.com/hook', { event: 'imported' })
          const batch = await holdfast.batch({ name: 'hooked', onComplete }, [])
          const { payload } = (await claimOne(holdfast, webhooks.queue)).job
          const body = JSON.parse((payload as { body: string }).body)
          assert.deepEqual(body, { event: 'imported', batchId: batch.id, state: 'done', round: 1 })
          const text = webhooks.effect('https://example.com/hook', 'only text')
          await rejects(holdfast.batch({ name: 'hooked', onComplete: text }, []), 'INVALID_OPTION')
        }),
      )

      test(
        'a wait ends in any process when the batch is finished; a wait that times out has the progress in its error',
        inWorld(async ({ holdfast, another }) => {
          const batch = await holdfast.batch({ name: 'awaited' }, numbered(1))
          const elsewhere = await (await another()).getBatch(batch.id)
          await rejects(batch.finished({ timeout: 30 }), 'WAIT_TIMEOUT', { state: 'queued', waiting: 1 })
          const waiting = elsewhere?.finished({ timeout: '10s' })
          await (await claimOne(holdfast, 'mail')).done()
          assert.equal((await waiting)?.state, 'done')
        }),
      )

      test(
        'the process that ended the last item emits an event',
        inWorld(async ({ holdfast }) => {
          const finished = heard(holdfast, 'batch.finished')
          const batch = await holdfast.batch({ name: 'import' }, numbered(1))
          await (await claimOne(holdfast, 'mail')).done()
          assert.deepEqual(await finished, [{ batch: batch.id, name: 'import', state: 'done', round: 1 }])
        }),
      )

      test(
        'a batch with too large a share of dead items ends early: the rest is cancelled, with the reason',
        inWorld(async ({ holdfast }) => {
          const options = { name: 'failing', concurrency: 1, stopWhenFailed: 0.2, onComplete: { queue: 'completions' } }
          const batch = await holdfast.batch(options, numbered(10))
          for (let n = 0; n < 3; n++) await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
          await holdfast.sweep()
          const { state, dead, cancelled, reason } = await batch.progress()
          assert.deepEqual({ state, dead, cancelled }, { state: 'cancelled', dead: 3, cancelled: 7 })
          assert.match(reason ?? '', /3 of 10/)
          const completion = (await claimOne(holdfast, 'completions')).job.payload
          assert.deepEqual(completion, { batchId: batch.id, state: 'cancelled', round: 1 })
        }),
      )

      test(
        'a finished batch is pruned when its retention is over',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'old', retain: '2d' }, [])
          await clock.advance(day)
          await holdfast.sweep()
          assert.ok(await holdfast.getBatch(batch.id))
          await clock.advance(day + 1)
          await holdfast.sweep()
          assert.equal(await holdfast.getBatch(batch.id), null)
          await rejects(batch.progress(), 'BATCH_NOT_FOUND')
        }),
      )

      test(
        'after that its dead items may be requeued, as jobs without a batch',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'old', retain: '1d' }, numbered(2))
          for (const lease of await holdfast.claim(['mail'], { max: 2 })) await lease.dead(new Error('no'))
          await clock.advance(day + 1)
          await holdfast.sweep()
          assert.equal(await holdfast.getBatch(batch.id), null)
          const [first] = await allJobs(holdfast)
          await holdfast.requeue(first?.id as string)
          const { changed } = await holdfast.requeueAll({ queue: 'mail' })
          assert.equal(changed, 1)
          const again = await holdfast.claim(['mail'], { max: 2 })
          assert.deepEqual(
            again.map(({ job }) => job.batch),
            [null, null],
          )
        }),
      )
    })

    describe('reads', () => {
      test(
        'items of one state are all listed, whatever the size of a page',
        inWorld(async ({ holdfast }) => {
          const scheduled = { queue: 'mail', payload: 0, delay: '1h' as const }
          const batch = await holdfast.batch({ name: 'letters', concurrency: 100 }, [
            ...numbered(40),
            ...Array(5).fill(scheduled),
          ])
          const leases = await holdfast.claim(['mail'], { max: 25 })
          for (const lease of leases.slice(0, 10)) await lease.done()
          const wanted = { done: 10, running: 15, ready: 15, scheduled: 5 } as const
          for (const [state, count] of Object.entries(wanted) as [keyof typeof wanted, number][]) {
            for (const limit of [1, 7, 1_000]) {
              const ids = new Set<string>()
              let after: string | null = null
              do {
                const page = await batch.itemsPage({ state, limit, ...(after !== null && { after }) })
                for (const { id } of page.items) ids.add(id)
                after = page.next
              } while (after !== null)
              assert.equal(ids.size, count, `${state} by ${limit}`)
            }
          }
        }),
      )

      test(
        'progress has a rate and the remaining time, without pauses',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'timed', concurrency: 1 }, numbered(10))
          assert.deepEqual([(await batch.progress()).rate, (await batch.progress()).remainingMs], [null, null])
          for (let n = 0; n < 4; n++) {
            const lease = await claimOne(holdfast, 'mail')
            await clock.advance(500)
            await lease.done()
          }
          assert.deepEqual([(await batch.progress()).rate, (await batch.progress()).remainingMs], [2, 3_000])
          await batch.pause()
          await clock.advance(minute)
          assert.deepEqual([(await batch.progress()).rate, (await batch.progress()).remainingMs], [2, null])
          await batch.resume()
          assert.deepEqual([(await batch.progress()).rate, (await batch.progress()).remainingMs], [2, 3_000])
        }),
      )

      test(
        'progress does not count the time between two rounds',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'p' }, numbered(4))
          for (let n = 0; n < 4; n++) {
            const lease = await claimOne(holdfast, 'mail')
            await clock.advance(1_000)
            await (n < 2 ? lease.done() : lease.dead(new Error('no')))
          }
          assert.equal((await batch.progress()).rate, 1)
          await clock.advance(day)
          await batch.retryFailed()
          const again = await batch.progress()
          assert.deepEqual([again.rate, again.remainingMs], [0.5, 4_000], 'two of four seconds do not count')
          const [id] = (await holdfast.jobs({ queue: 'mail', state: 'ready' })).jobs.map((job) => job.id)
          await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
          await (await claimOne(holdfast, 'mail')).done()
          await clock.advance(day)
          await holdfast.requeue(id as string)
          assert.equal((await batch.progress()).rate, 0.75)
        }),
      )

      test(
        'a batch is read by id and by key; batches are listed newest first, by state, in pages',
        inWorld(async ({ holdfast, clock }) => {
          const made = []
          for (const name of ['a', 'b', 'c']) {
            made.push(await holdfast.batch({ name, key: `key ${name}` }, name === 'b' ? [] : numbered(1)))
            await clock.advance(1)
          }
          assert.equal((await holdfast.getBatch({ key: 'key b' }))?.id, made[1]?.id)
          assert.equal((await holdfast.getBatch(made[0]?.id as string))?.id, made[0]?.id)
          assert.equal(await holdfast.getBatch({ key: 'unknown' }), null)
          const names = async (filter: Parameters<Holdfast['batches']>[0]) =>
            (await holdfast.batches(filter)).batches.map(({ name }) => name)
          assert.deepEqual(await names({}), ['c', 'b', 'a'])
          assert.deepEqual(await names({ state: 'done' }), ['b'])
          assert.deepEqual(await names({ state: 'queued' }), ['c', 'a'])
          const page = await holdfast.batches({ limit: 2 })
          assert.deepEqual(await names({ after: page.next as string }), ['a'])
        }),
      )

      test(
        'items are listed by state, outcome and warning, in pages',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'i', concurrency: 10 }, numbered(6))
          const leases = await holdfast.claim(['mail'], { max: 5 })
          for (const [n, lease] of leases.entries()) {
            if (n === 4) await lease.dead(new Error('no'))
            else
              await lease.done(n, undefined, {
                outcome: n < 3 ? 'saved' : 'duplicate',
                ...(n === 0 && { warning: 'w' }),
              })
          }
          const payloads = async (filter: Parameters<typeof batch.items>[0]) =>
            (await Array.fromAsync(batch.items(filter))).map(({ payload }) => payload)
          assert.deepEqual(await payloads({}), [0, 1, 2, 3, 4, 5])
          assert.deepEqual(await payloads({ outcome: 'saved' }), [0, 1, 2])
          assert.deepEqual(await payloads({ outcome: 'duplicate', state: 'done' }), [3])
          assert.deepEqual(await payloads({ warning: 'w' }), [0])
          assert.deepEqual(await payloads({ state: 'dead' }), [4])
          assert.deepEqual(await payloads({ state: 'ready' }), [5])
          assert.deepEqual(await payloads({ outcome: 'unknown' }), [])
          const first = await batch.itemsPage({ limit: 4 })
          const rest = await batch.itemsPage({ limit: 4, after: first.next as string })
          assert.deepEqual(
            [...first.items, ...rest.items].map(({ payload }) => payload),
            [0, 1, 2, 3, 4, 5],
          )
          assert.equal(rest.next, null)
        }),
      )

      test(
        'results have a line for each ended item, in the order of submission',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'r', concurrency: 10 }, numbered(4))
          const leases = await holdfast.claim(['mail'], { max: 3 })
          await leases[2]?.done({ sum: 2 }, undefined, { outcome: 'saved', costs: { tokens: 1 } })
          await leases[0]?.dead(new TypeError('bad'))
          await leases[1]?.cancelled()
          const text = (await Array.fromAsync(toJsonLines(batch.results()))).join('')
          const lines = await Array.fromAsync(jsonLines<Record<string, unknown>>(text))
          assert.deepEqual(
            lines.map(({ payload, state, outcome, result }) => ({ payload, state, outcome, result })),
            [
              { payload: 0, state: 'dead', outcome: null, result: null },
              { payload: 1, state: 'cancelled', outcome: null, result: null },
              { payload: 2, state: 'done', outcome: 'saved', result: { sum: 2 } },
            ],
          )
        }),
      )
    })
  })
}

export const none = { waiting: 0, running: 0, done: 0, dead: 0, cancelled: 0 }

export function counts({ waiting, running, done, dead, cancelled }: BatchProgress): typeof none {
  return { waiting, running, done, dead, cancelled }
}

/** Items of the queue `mail` whose payloads count from 0. */
export function numbered(count: number): BatchItem[] {
  return Array.from({ length: count }, (_, payload) => ({ queue: 'mail', payload }))
}
