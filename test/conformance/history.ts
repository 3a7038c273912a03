import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, deadJob, minute, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function historyTests(inWorld: InWorld): void {
  describe('history', () => {
    test(
      'every attempt is recorded: when, by which worker, how it ended, with which error',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const times: number[] = []
        const next = async (worker: string) => {
          await holdfast.sweep()
          times.push(clock.now())
          const lease = await claimOne(holdfast, 'mail', { worker, lease: '30s' })
          await clock.advance(10_000)
          return lease
        }
        await (await next('w1')).retry(new TypeError('bad'), { delay: 0 })
        await (await next('w2')).release()
        await (await next('w3')).snooze('5s')
        await clock.advance(5_000)
        await next('w4')
        await clock.advance(minute)
        await holdfast.sweep()
        await (await next('w5')).done()
        const { history } = await readJob(holdfast, id)
        assert.deepEqual(
          history.map(({ attempt, worker, ending, error }) => [attempt, worker, ending, error?.name]),
          [
            [1, 'w1', 'failed', 'TypeError'],
            [2, 'w2', 'released', undefined],
            [2, 'w3', 'snoozed', undefined],
            [2, 'w4', 'expired', 'LeaseExpired'],
            [3, 'w5', 'done', undefined],
          ],
        )
        assert.deepEqual(
          history.map(({ startedAt }) => startedAt.getTime()),
          times,
        )
        assert.deepEqual(
          history.map(({ startedAt, endedAt }) => endedAt.getTime() - startedAt.getTime()),
          [10_000, 10_000, 10_000, 70_000, 10_000],
        )
      }),
    )

    test(
      'the causes of an error are kept: in the job, its history, events, explain, a result, and for requeueAll',
      inWorld(async ({ holdfast }) => {
        const refused = Object.assign(new Error('connect to 127.0.0.1:1'), { code: 'ECONNREFUSED' })
        const failure = () => new TypeError('fetch failed', { cause: new AggregateError([refused], 'all refused') })
        const causes = [
          { message: 'all refused', name: 'AggregateError' },
          { message: 'connect to 127.0.0.1:1', name: 'Error', code: 'ECONNREFUSED' },
        ]
        const { id } = await holdfast.queue('mail').enqueue(1)
        await (await claimOne(holdfast, 'mail')).retry(failure(), { delay: 0 })
        assert.deepEqual((await readJob(holdfast, id)).history[0]?.error?.causes, causes)
        await (await claimOne(holdfast, 'mail')).dead(failure())
        const { error, history } = await readJob(holdfast, id)
        assert.deepEqual([error?.message, error?.causes], ['fetch failed', causes])
        assert.deepEqual(
          history.map((attempt) => attempt.error?.causes),
          [causes, causes],
        )
        const said = 'fetch failed (caused by all refused; connect to 127.0.0.1:1 [ECONNREFUSED])'
        assert.ok((await holdfast.explain(id)).sentence.includes(said))
        assert.ok((await rejects(holdfast.result(id), 'JOB_DEAD')).message.includes(said))
        await deadJob(holdfast, 'mail')
        const found = async (text: string) => (await holdfast.requeueAll({ error: text }, { dryRun: true })).changed
        const texts = ['fetch failed', 'ECONNREFUSED', 'connect to 127', 'AggregateError all refused', 'elsewhere']
        assert.deepEqual(await Promise.all(texts.map(found)), [1, 1, 1, 1, 0])
        assert.equal((await holdfast.requeueAll({ error: 'ECONNREFUSED' })).changed, 1)
      }),
    )

    test(
      'the last 50 attempts are kept, oldest first',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 60 })
        for (let n = 1; n <= 60; n++) await (await claimOne(holdfast, 'mail')).retry(`no ${n}`, { delay: 0 })
        const { state, attempts, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts], ['dead', 60])
        assert.deepEqual(
          history.map(({ attempt, error }) => [attempt, error?.message]),
          Array.from({ length: 50 }, (_, n) => [n + 11, `no ${n + 11}`]),
        )
      }),
    )

    test(
      'every thrown value is kept as text, and none breaks the settlement',
      inWorld(async ({ holdfast }) => {
        const circular: Record<string, unknown> = {}
        circular['self'] = circular
        const thrown: [unknown, RegExp][] = [
          ['a string', /^a string$/],
          [undefined, /undefined/],
          [null, /null/],
          [{ status: 500 }, /500/],
          [circular, /^\{"self":"\[cycle\]"\}$/],
          [10n, /./],
          [Symbol('odd'), /odd/],
          [new Error(''), /^Error$/],
          ['nul \0 and half \ud800 character', /^nul [^\0]* and half \ufffd character$/],
        ]
        for (const [value, expected] of thrown) {
          const { id } = await holdfast.queue('mail').enqueue(1)
          await (await claimOne(holdfast, 'mail')).dead(value)
          assert.match((await readJob(holdfast, id)).error?.message ?? '', expected)
        }
      }),
    )

    test(
      'error text is cut to 8 KiB, in any script',
      inWorld(async ({ holdfast }) => {
        for (const letter of ['x', '漢', '😀']) {
          const { id } = await holdfast.queue('mail').enqueue(1)
          const error = Object.assign(new Error(letter.repeat(50_000)), { code: letter.repeat(5_000) })
          await (await claimOne(holdfast, 'mail')).dead(error)
          const kept = (await readJob(holdfast, id)).error
          assert.ok(kept)
          assert.ok(kept.message.startsWith(letter.repeat(100)))
          const text = [kept.message, kept.name, kept.code, kept.stack].join('')
          const bytes = Buffer.byteLength(text)
          assert.ok(bytes <= 8 * 1024, `${bytes} bytes of ${letter}`)
          assert.ok(text.isWellFormed())
        }
      }),
    )
  })
}
