// How flows end, what they publish, and how both are read.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import type { HoldfastError } from '../../src/errors.ts'
import { defineFlow, defineWebhooks, type EndNotice } from '../../src/index.ts'
import { claimOne, heard, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const atOnce = { backoff: { base: 0 } } as const

export function flowEndTests(inWorld: InWorld): void {
  describe('ends and partial results of a flow', () => {
    verdictTests(inWorld)
    partialTests(inWorld)
    definitionTests(inWorld)
  })
}

function verdictTests(inWorld: InWorld): void {
  test(
    'flow.done ends a run with effects, an outcome and a webhook, all in one commit',
    inWorld(async ({ holdfast }) => {
      const webhooks = defineWebhooks({ secret: 'whsec_dGhpcyBpcyBhIHNlY3JldCBvZiAyNCBieXRlcw==' })
      const flow = defineFlow('flow', { webhooks, result: z.object({ n: z.number() }) }, async (flow) => {
        await flow.step('work', () => 1)
        const webhook = { url: 'https://example.org/hook', event: 'flow.done' }
        return flow.done({ n: 7 }, { outcome: 'saved', effects: { put: [{ key: 'k', value: 1 }] }, webhook })
      })
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      assert.deepEqual(await holdfast.result(id), { n: 7 })
      assert.equal((await readJob(holdfast, id)).outcome, 'saved')
      assert.equal((await holdfast.kv.get('k'))?.value, 1)
      const { job } = await claimOne(holdfast, webhooks.queue.name)
      const { url, body } = job.payload as { url: string; body: string }
      assert.equal(url, 'https://example.org/hook')
      assert.deepEqual(JSON.parse(body), { event: 'flow.done', id, flow: 'flow', state: 'succeeded', result: { n: 7 } })
    }),
  )

  test(
    'effects of the end that are refused fail the attempt: nothing of the end is written, and recorded steps stay',
    inWorld(async ({ holdfast }) => {
      const calls: string[] = []
      const flow = defineFlow('flow', atOnce, async (flow) => {
        await flow.step('work', () => void calls.push('work'))
        const version = calls.length === 1 ? 77 : null
        calls.push('end')
        return flow.done('ended', {
          effects: { put: [{ key: 'other', value: version }], compareAndSet: [{ key: 'k', version, value: 1 }] },
        })
      })
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      assert.equal(await holdfast.result(id), 'ended')
      assert.deepEqual(calls, ['work', 'end', 'end'])
      assert.equal((await holdfast.kv.get('other'))?.value, null)
      assert.equal((await readJob(holdfast, id)).history.length, 2)
    }),
  )

  test(
    'a webhook without webhooks in the definition fails the attempt, and says what to give',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', { attempts: 1 }, (flow) =>
        flow.done(1, { webhook: { url: 'https://example.org', event: 'x' } }),
      )
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await rejects(holdfast.result(id), 'JOB_DEAD')
      assert.match((await readJob(holdfast, id)).error?.message ?? '', /give defineFlow the option webhooks/)
    }),
  )

  test(
    'flow.fail ends a run as failed, without a dead letter; result rejects with its reason',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', { onDead: { queue: 'letters' } }, async (flow) => {
        await flow.publish({ pages: 1 })
        return flow.fail('no text on page 2', { effects: { put: [{ key: 'failed', value: 1 }] } })
      })
      await using _ = holdfast.work(flow)
      const ended = heard(holdfast, 'flow.ended')
      const { id } = await holdfast.start(flow, null)
      const error = (await rejects(holdfast.result(id), 'FLOW_FAILED')) as HoldfastError
      assert.match(error.message, /has failed: no text on page 2/)
      assert.equal((await ended)[0]?.state, 'failed')
      const job = await readJob(holdfast, id)
      assert.deepEqual([job.state, job.outcome, job.error?.code], ['done', 'failed', 'FLOW_FAILED'])
      const { state, partial, error: reason } = await holdfast.status(flow, id)
      assert.deepEqual([state, partial, reason?.message], ['failed', { pages: 1 }, 'no text on page 2'])
      assert.equal((await holdfast.kv.get('failed'))?.value, 1)
      assert.equal((await holdfast.stats('letters')).ready, 0)
    }),
  )

  test(
    'flow.cancel ends a run as cancelled, with its reason',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, (flow) => flow.cancel('not wanted'))
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await rejects(holdfast.result(id), 'JOB_CANCELLED')
      const { state, error } = await holdfast.status(flow, id)
      assert.deepEqual([state, error?.message], ['cancelled', 'not wanted'])
    }),
  )

  test(
    'every end makes one notice in the onEnd queue',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', { onEnd: { queue: 'ends' }, attempts: 1 }, async (flow, how: string) => {
        if (how === 'done') return flow.done({ how })
        if (how === 'fail') return flow.fail('decided')
        if (how === 'cancel') return flow.cancel('decided')
        throw new Error('broken')
      })
      await using _ = holdfast.work(flow)
      const ends: unknown[] = []
      for (const how of ['done', 'fail', 'cancel', 'die']) {
        const { id } = await holdfast.start(flow, how)
        await Promise.allSettled([holdfast.result(id)])
        const notice = (await claimOne(holdfast, 'ends', { wait: '5s' })).job.payload as EndNotice
        assert.equal(notice.id, id)
        assert.equal(notice.payload, how)
        ends.push([notice.state, notice.outcome, notice.result, notice.error?.message ?? null])
      }
      assert.deepEqual(ends, [
        ['done', null, { how: 'done' }, null],
        ['done', 'failed', null, 'decided'],
        ['cancelled', null, null, 'decided'],
        ['dead', null, null, 'broken'],
      ])
    }),
  )

  test(
    'costs of steps are those of the run',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, async (flow) => {
        await flow.step('a', ({ cost }) => cost('tokens', 3))
        await flow.step('b', ({ cost }) => cost('tokens', 4))
      })
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await holdfast.result(id)
      assert.deepEqual((await readJob(holdfast, id)).costs, { tokens: 7 })
    }),
  )
}

function partialTests(inWorld: InWorld): void {
  test(
    'a partial result is readable while the run goes on, and a replay never puts an older one over a newer',
    inWorld(async ({ holdfast }) => {
      const seen: unknown[] = []
      const flow = defineFlow('flow', { ...atOnce, partial: z.object({ n: z.number() }) }, async (flow) => {
        for (let n = 1; n <= 3; n++) {
          await flow.publish({ n: n * 10 + flow.attempt })
          seen.push((await holdfast.status(flow0, flow.id)).partial)
        }
        await flow.publish({ n: 0 }, { name: 'named' })
        seen.push((await holdfast.status(flow0, flow.id)).partial)
        if (flow.attempt === 1) throw new Error('once more')
        await flow.publish({ n: 99 })
      })
      const flow0 = flow
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await holdfast.result(id)
      const first = [{ n: 11 }, { n: 21 }, { n: 31 }, { n: 0 }]
      assert.deepEqual(seen, [...first, { n: 0 }, { n: 0 }, { n: 0 }, { n: 0 }])
      assert.deepEqual((await holdfast.status(flow, id)).partial, { n: 99 })
    }),
  )

  test(
    'a partial result that does not fit its schema, or is too large, rejects its publish',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', { partial: z.string() }, async (flow) => {
        await rejects(flow.publish(7 as never), 'INVALID_PAYLOAD')
        await rejects(flow.publish('x'.repeat(1024 * 1024)), 'RESULT_TOO_LARGE')
        return 'done'
      })
      await using _ = holdfast.work(flow)
      assert.equal(await holdfast.result((await holdfast.start(flow, null)).id), 'done')
    }),
  )

  test(
    'follow yields each partial result once and ends with the run; if it has failed, it throws as its result does',
    inWorld(async ({ holdfast, another }) => {
      const flow = defineFlow('flow', { partial: z.number() }, async (flow, fails: boolean) => {
        for (let n = 1; n <= 3; n++) {
          await flow.publish(n)
          await flow.signal('next')
        }
        return fails ? flow.fail('decided') : 'done'
      })
      await using _ = holdfast.work(flow)
      const other = await another()
      const follow = async (fails: boolean): Promise<number[]> => {
        const { id } = await holdfast.start(flow, fails)
        const seen: number[] = []
        const read = async () => {
          for await (const partial of other.follow(flow, id)) {
            seen.push(partial)
            await holdfast.signal(flow, id, 'next', null)
          }
        }
        if (fails) await rejects(read(), 'FLOW_FAILED')
        else await read()
        return seen
      }
      assert.deepEqual(await follow(false), [1, 2, 3])
      assert.deepEqual(await follow(true), [1, 2, 3])
      await rejects(Array.fromAsync(other.follow(flow, crypto.randomUUID())), 'JOB_NOT_FOUND')
      const stop = AbortSignal.abort()
      const { id } = await holdfast.start(flow, false)
      assert.deepEqual(await Array.fromAsync(other.follow(flow, id, { signal: stop })), [])
    }),
  )
}

function definitionTests(inWorld: InWorld): void {
  test(
    'a flow is accepted wherever a queue is, and is started with every option of an enqueue',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', { attempts: 2, priority: 3 }, () => 'done')
      const first = await holdfast.start(flow, 1, { idempotencyKey: 'k', labels: { of: 'ada' }, delay: '1h' })
      const again = await holdfast.start(flow, 1, { idempotencyKey: 'k', labels: { of: 'ada' }, delay: '1h' })
      assert.deepEqual([first.status, again], ['created', { id: first.id, status: 'duplicate' }])
      const { jobs } = await holdfast.jobs({ queue: flow, labels: { of: 'ada' } })
      assert.deepEqual(
        jobs.map(({ id, priority, maxAttempts }) => [id, priority, maxAttempts]),
        [[first.id, 3, 2]],
      )
      assert.equal((await holdfast.stats(flow)).scheduled, 1)
      assert.equal(holdfast.queue(flow).name, 'flow')
      await holdfast.pause(flow)
      await holdfast.resume(flow)
    }),
  )

  test(
    'the version of a flow is part of the stored definition',
    inWorld(async ({ holdfast, store }) => {
      const flow = defineFlow('flow', { version: 3, onEnd: { queue: 'ends' } }, () => undefined)
      await holdfast.start(flow, null)
      const [stored] = await (await store()).definitions(['flow'])
      assert.deepEqual([stored?.definition.flow, stored?.definition.onEnd], [3, 'ends'])
    }),
  )

  test(
    'mistakes in a definition, and a flow with a handler, are refused',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, () => undefined)
      const wrong: readonly (() => unknown)[] = [
        () => defineFlow('flow', {}, 'x' as never),
        () => defineFlow('flow', { version: 0 }, () => undefined),
        () => defineFlow('flow', { step: { once: true } as never }, () => undefined),
        () => defineFlow('flow', { onEnd: { queue: 'flow' } }, () => undefined),
        () => defineFlow('flow', { signals: { x: 1 as never } }, () => undefined),
        () => defineFlow('flow', { webhooks: {} as never }, () => undefined),
        () => defineFlow('flow', { unknown: 1 } as never, () => undefined),
        () => holdfast.work([[flow, () => undefined] as never]),
        () => holdfast.work(flow, (() => undefined) as never),
      ]
      for (const each of wrong) assert.throws(each, { code: 'INVALID_OPTION' })
      await rejects(holdfast.start('flow' as never, null), 'INVALID_OPTION')
      await rejects(holdfast.status('flow' as never, crypto.randomUUID()), 'INVALID_OPTION')
    }),
  )
}
