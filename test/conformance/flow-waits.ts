// Flows that wait: for times, signals and children. A waiting run holds no worker, and misses nothing.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import type { Holdfast } from '../../src/holdfast.ts'
import { type AnyFlow, defineFlow, defineQueue } from '../../src/index.ts'
import { abortOf, day, heard, hour, minute, readJob, rejects, stateOf } from './expect.ts'
import { type InSqlWorld, type InWorld, type StoreUnderTest, type TestClock, withSql } from './world.ts'

const second = 1_000
const atOnce = { backoff: { base: 0 } } as const

export function flowWaitTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('waits of a flow', () => {
    sleepTests(inWorld)
    signalTests(inWorld)
    keyTests(inWorld)
    if (dialect) transactionTests(withSql(inWorld))
    childTests(inWorld)
    cancelTests(inWorld)
  })
}

/** Starts a run, and resolves with its id once it is parked. */
async function parkedRun<In>(holdfast: Holdfast, flow: AnyFlow, payload: In): Promise<string> {
  const parked = heard(holdfast, 'flow.parked')
  const { id } = await holdfast.start(flow, payload)
  await parked
  return id
}

async function pass(clock: TestClock, ms: number, holdfast: Holdfast): Promise<void> {
  await clock.advance(ms)
  await holdfast.sweep()
}

function sleepTests(inWorld: InWorld): void {
  test(
    'a run that sleeps is scheduled for the end of its sleep, and goes on behind it; its steps are not repeated',
    inWorld(async ({ holdfast, clock }) => {
      let calls = 0
      const flow = defineFlow('flow', {}, async (flow) => {
        await flow.step('before', () => {
          calls += 1
        })
        await flow.sleep('rest', '10m')
        return 'rested'
      })
      await using _ = holdfast.work(flow)
      const began = clock.now()
      const id = await parkedRun(holdfast, flow, null)
      const { state, runAt, attempts } = await readJob(holdfast, id)
      assert.deepEqual([state, attempts], ['scheduled', 0])
      assert.ok(Math.abs(runAt.getTime() - began - 10 * minute) < 5 * second)
      const { state: said, steps } = await holdfast.status(flow, id)
      assert.deepEqual(
        [said, steps.map(({ name, state }) => [name, state])],
        [
          'waiting',
          [
            ['before', 'done'],
            ['rest', 'sleeping'],
          ],
        ],
      )
      assert.ok(Math.abs((steps[1]?.until?.getTime() ?? 0) - began - 10 * minute) < 5 * second)
      await pass(clock, 10 * minute, holdfast)
      assert.equal(await holdfast.result(id), 'rested')
      assert.equal(calls, 1)
    }),
  )

  test(
    'parked runs hold no slot: with a concurrency of 1, another job runs beside 100 runs that sleep',
    inWorld(async ({ holdfast, clock }) => {
      const flow = defineFlow('flow', {}, (flow) => flow.sleep('rest', '1h'))
      const mail = defineQueue('mail')
      await using _ = holdfast.work([[flow], [mail, () => 'sent']], { concurrency: 1 })
      const parked = heard(holdfast, 'flow.parked', 100)
      const runs = await holdfast.queue(flow).enqueueMany(Array.from({ length: 100 }, () => ({ payload: null })))
      await parked
      assert.equal(await holdfast.result((await holdfast.queue(mail).enqueue(null)).id), 'sent')
      await pass(clock, hour, holdfast)
      for (const { id } of runs) await holdfast.result(id)
    }),
  )

  test(
    'the deadline of a sleep counts from the first park: a run that is woken early parks again for the rest',
    inWorld(async ({ holdfast, clock }) => {
      let executions = 0
      const flow = defineFlow('flow', {}, async (flow) => {
        executions += 1
        await flow.sleep('rest', '1h')
        return executions
      })
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      const { runAt } = await readJob(holdfast, id)
      await clock.advance(20 * minute)
      const again = heard(holdfast, 'flow.parked')
      await holdfast.wake(id)
      await again
      const woken = await readJob(holdfast, id)
      assert.ok(Math.abs(woken.runAt.getTime() - runAt.getTime()) < 2 * second, 'the deadline was not renewed')
      await pass(clock, 40 * minute, holdfast)
      assert.equal(await holdfast.result(id), 3)
    }),
  )

  test(
    'a sleep until a time that has passed, and one below a second, need no park',
    inWorld(async ({ holdfast, clock }) => {
      const parked: unknown[] = []
      holdfast.on('flow.parked', (event) => void parked.push(event))
      const flow = defineFlow('flow', {}, async (flow) => {
        await flow.sleepUntil('past', clock.now() - day)
        await flow.sleep('short', '30ms')
        return 'awake'
      })
      await using _ = holdfast.work(flow)
      assert.equal(await holdfast.result((await holdfast.start(flow, null)).id), 'awake')
      assert.deepEqual(parked, [])
    }),
  )

  test(
    'a step that waits long for its next attempt gives its slot back, and is repeated at its time',
    inWorld(async ({ holdfast, clock }) => {
      const attempts: number[] = []
      const flow = defineFlow('flow', { step: { backoff: { base: '1m', jitter: 0 } } }, (flow) =>
        flow.step('flaky', ({ attempt }) => {
          attempts.push(attempt)
          if (attempt === 1) throw new Error('busy')
          return attempt
        }),
      )
      await using _ = holdfast.work(flow, { concurrency: 1 })
      const id = await parkedRun(holdfast, flow, null)
      const [step] = (await holdfast.status(flow, id)).steps
      assert.deepEqual([step?.state, step?.attempts, step?.error?.message], ['retrying', 1, 'busy'])
      await pass(clock, minute, holdfast)
      assert.equal(await holdfast.result(id), 2)
      assert.deepEqual(attempts, [1, 2])
    }),
  )

  test(
    'a race between waits has the same winner in every execution',
    inWorld(async ({ holdfast, clock }) => {
      const winners: string[] = []
      const flow = defineFlow('flow', atOnce, async (flow) => {
        const late = flow.signal('late').then(() => 'late')
        const soon = flow.signal('soon').then(() => 'soon')
        winners.push(await Promise.race([late, soon]))
        await Promise.all([late, soon])
        if (winners.length < 4) throw new Error('once more')
      })
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      const parked = heard(holdfast, 'flow.parked')
      await holdfast.signal(flow, id, 'soon', 1)
      await parked
      await holdfast.signal(flow, id, 'late', 1)
      await holdfast.result(id)
      assert.deepEqual(winners, ['soon', 'soon', 'soon', 'soon'])
      await clock.advance(0)
    }),
  )
}

function signalTests(inWorld: InWorld): void {
  test(
    'signals are buffered from the start of the run, taken first in first out, and each is used once',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', atOnce, async (flow) => {
        const got: unknown[] = []
        for (let i = 0; i < 3; i++) got.push(await flow.signal('item'))
        if (flow.attempt === 1 && !(await holdfast.kv.get('again'))) {
          await holdfast.kv.put('again', 1)
          throw new Error('once more')
        }
        return got
      })
      const { id } = await holdfast.start(flow, null)
      await holdfast.signal(flow, id, 'item', 'a')
      await holdfast.signal(flow, id, 'other', 'x')
      await holdfast.signal(flow, id, 'item', { b: [null] })
      await using _ = holdfast.work(flow)
      await heard(holdfast, 'flow.parked')
      await holdfast.signal(flow, id, 'item', null)
      assert.deepEqual(await holdfast.result(id), ['a', { b: [null] }, null])
      const names = (await holdfast.status(flow, id)).steps.map(({ name }) => name)
      assert.deepEqual(names, ['signal:item', 'signal:item#2', 'signal:item#3'])
      await rejects(holdfast.signal(flow, id, 'item', 1), 'INVALID_STATE')
    }),
  )

  test(
    'a signal that is not declared, or whose value does not fit, is refused where it is sent',
    inWorld(async ({ holdfast }) => {
      const verdict = z.object({ ok: z.boolean(), at: z.string().transform((text) => text.length) })
      const flow = defineFlow('flow', { signals: { verdict } }, async (flow) => {
        const { ok, at } = await flow.signal('verdict')
        return [ok, at]
      })
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      await rejects(holdfast.signal(flow, id, 'verdict', { ok: 1 } as never), 'INVALID_PAYLOAD')
      await rejects(holdfast.signal(flow, id, 'other' as never, 1 as never), 'INVALID_OPTION')
      await rejects(holdfast.signal(flow, 'no id', 'verdict', { ok: true, at: '' }), 'INVALID_ID')
      await rejects(holdfast.signal(flow, crypto.randomUUID(), 'verdict', { ok: true, at: '' }), 'JOB_NOT_FOUND')
      await holdfast.signal(flow, id, 'verdict', { ok: true, at: 'four' })
      assert.deepEqual(await holdfast.result(id), [true, 4])
    }),
  )

  test(
    'a value that an older sender has sent, and that does not fit, is used up, and its error can be caught',
    inWorld(async ({ holdfast }) => {
      const old = defineFlow('flow', {}, () => undefined)
      const flow = defineFlow('flow', { signals: { count: z.number() } }, async (flow) => {
        const first = await flow.signal('count').catch(({ code, facts }) => [code, facts.signal])
        return [first, await flow.signal('count')]
      })
      const { id } = await holdfast.start(flow, null)
      await holdfast.signal(old, id, 'count', 'many')
      await holdfast.signal(old, id, 'count', 7)
      await using _ = holdfast.work(flow)
      assert.deepEqual(await holdfast.result(id), [['INVALID_PAYLOAD', 'count'], 7])
    }),
  )

  test(
    'a wait that is over answers null, and the signal that comes later stays for the next wait',
    inWorld(async ({ holdfast, clock }) => {
      const flow = defineFlow('flow', {}, async (flow) => {
        const first = await flow.signal('paid', { timeout: '7d' })
        const second = await flow.signal('paid', { timeout: '7d' })
        return [first, second]
      })
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      const [step] = (await holdfast.status(flow, id)).steps
      assert.deepEqual([step?.name, step?.state, step?.signal], ['signal:paid', 'waiting', 'paid'])
      const again = heard(holdfast, 'flow.parked')
      await pass(clock, 7 * day, holdfast)
      await again
      await holdfast.signal(flow, id, 'paid', 17)
      assert.deepEqual(await holdfast.result(id), [null, 17])
    }),
  )

  test(
    'a signal wakes the run at once, and one that is not waited for leaves it parked until its deadline',
    inWorld(async ({ holdfast, clock }) => {
      const flow = defineFlow('flow', {}, (flow) => flow.signal('go', { timeout: '1h' }))
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      const { runAt } = await readJob(holdfast, id)
      const again = heard(holdfast, 'flow.parked')
      await holdfast.signal(flow, id, 'other', 1)
      await again
      assert.ok(Math.abs((await readJob(holdfast, id)).runAt.getTime() - runAt.getTime()) < 2 * second)
      await holdfast.signal(flow, id, 'go', 1)
      assert.equal(await holdfast.result(id), 1)
      assert.ok(clock.now() < runAt.getTime())
    }),
  )

  test(
    'a signal that comes while a step runs beside the wait is taken without a park',
    inWorld(async ({ holdfast }) => {
      const stopped = Promise.withResolvers<void>()
      const flow = defineFlow('flow', {}, async (flow) => {
        const work = flow.step('work', () => stopped.promise)
        const stop = await flow.signal('stop')
        stopped.resolve()
        await work
        return stop
      })
      await using _ = holdfast.work(flow)
      const started = heard(holdfast, 'job.started')
      const { id } = await holdfast.start(flow, null)
      await started
      await holdfast.signal(flow, id, 'stop', 'please')
      assert.equal(await holdfast.result(id), 'please')
    }),
  )

  test(
    'clearSignals removes what waits, once: a later execution does not clear again',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', atOnce, async (flow) => {
        await flow.clearSignals('go')
        const go = await flow.signal('go')
        return go
      })
      const { id } = await holdfast.start(flow, null)
      for (const n of [1, 2]) await holdfast.signal(flow, id, 'go', n)
      await holdfast.signal(flow, id, 'other', 3)
      await using _ = holdfast.work(flow)
      await heard(holdfast, 'flow.parked')
      await holdfast.signal(flow, id, 'go', 4)
      assert.equal(await holdfast.result(id), 4)
      const { id: next } = await holdfast.start(flow, null, { delay: '1h' })
      for (const n of [1, 2]) await holdfast.signal(flow, next, 'go', n)
      await holdfast.signal(flow, next, 'other', 3)
      assert.deepEqual([await holdfast.clearSignals(flow, next, 'go'), await holdfast.clearSignals(flow, next)], [2, 1])
    }),
  )

  test(
    'at most 100 signals of one name wait for a run',
    inWorld(async ({ holdfast }) => {
      const flow = defineFlow('flow', {}, () => undefined)
      const { id } = await holdfast.start(flow, null)
      for (let n = 0; n < 100; n++) await holdfast.signal(flow, id, 'go', n)
      await rejects(holdfast.signal(flow, id, 'go', 100), 'MAILBOX_FULL')
      await holdfast.signal(flow, id, 'other', 0)
    }),
  )
}

function keyTests(inWorld: InWorld): void {
  const flow = defineFlow('flow', {}, (flow, key: string) => flow.signal('paid', { key, timeout: '1h' }))

  test(
    'a signal under a key reaches the run that waits for it, also if it was sent before the run was started',
    inWorld(async ({ holdfast }) => {
      await holdfast.signal(flow, { key: 'order-1' }, 'paid', 'early')
      await using _ = holdfast.work(flow)
      assert.equal(await holdfast.result((await holdfast.start(flow, 'order-1')).id), 'early')
      const id = await parkedRun(holdfast, flow, 'order-2')
      const [step] = (await holdfast.status(flow, id)).steps
      assert.deepEqual([step?.signal, step?.key], ['paid', 'order-2'])
      await holdfast.signal(flow, { key: 'order-3' }, 'paid', 'of another')
      await holdfast.signal(flow, { key: 'order-2' }, 'paid', 'late')
      assert.equal(await holdfast.result(id), 'late')
    }),
  )

  test(
    'of two runs that wait for one key, one gets the signal, and the other goes on waiting',
    inWorld(async ({ holdfast, clock }) => {
      await using _ = holdfast.work(flow)
      const parked = heard(holdfast, 'flow.parked', 2)
      const ids = [(await holdfast.start(flow, 'k')).id, (await holdfast.start(flow, 'k')).id]
      await parked
      await holdfast.signal(flow, { key: 'k' }, 'paid', 'once')
      await Promise.race(ids.map((id) => holdfast.result(id)))
      while ((await Promise.all(ids.map((id) => stateOf(holdfast, id)))).sort().join() !== 'done,scheduled')
        await new Promise(setImmediate)
      await pass(clock, hour, holdfast)
      const results = await Promise.all(ids.map((id) => holdfast.result(id)))
      assert.deepEqual(results.sort(), [null, 'once'].sort())
    }),
  )

  test(
    'a signal under a key is gone when its time is over',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.signal(flow, { key: 'k' }, 'paid', 'stale', { ttl: '1m' })
      await pass(clock, 2 * minute, holdfast)
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, 'k')
      await holdfast.signal(flow, { key: 'k' }, 'paid', 'fresh', { ttl: '1m' })
      assert.equal(await holdfast.result(id), 'fresh')
    }),
  )
}

function transactionTests(inSql: InSqlWorld): void {
  test(
    'a signal in the caller’s transaction arrives if that commits, and not otherwise',
    inSql(async ({ holdfast, sql }) => {
      const flow = defineFlow('flow', {}, (flow) => flow.signal('go'))
      const worker = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      await worker.stop()
      const undone = await sql.begin()
      await holdfast.signal(flow, id, 'go', 'undone', { tx: undone.tx })
      await undone.rollback()
      const own = await sql.begin()
      await holdfast.signal(flow, id, 'go', 'done', { tx: own.tx })
      await own.commit()
      await using _ = holdfast.work(flow)
      assert.equal(await holdfast.result(id), 'done')
    }),
  )
}

function childTests(inWorld: InWorld): void {
  test(
    'a child is one job, started once; the run waits without a worker, and gets its result in every execution',
    inWorld(async ({ holdfast }) => {
      const scoring = defineQueue<{ readonly n: number }, { readonly score: number }>('scoring')
      let calls = 0
      const flow = defineFlow('flow', atOnce, async (flow, n: number) => {
        await flow.step('before', () => n)
        const { score } = await flow.call('score', scoring, { n }, { priority: 1 })
        if (flow.attempt === 1 && !(await holdfast.kv.get('again'))) {
          await holdfast.kv.put('again', 1)
          throw new Error('once more')
        }
        return score
      })
      const worker = holdfast.work(flow, { concurrency: 1 })
      const id = await parkedRun(holdfast, flow, 4)
      const { state, steps } = await holdfast.status(flow, id)
      const child = steps[1]?.child
      assert.ok(child)
      assert.deepEqual([state, steps[1]?.state, child.queue, child.state], ['waiting', 'calling', 'scoring', 'live'])
      assert.equal((await readJob(holdfast, child.id)).priority, 1)
      await using _scoring = holdfast.work(scoring, ({ payload: { n } }) => {
        calls += 1
        return { score: n * 2 }
      })
      assert.equal(await holdfast.result(id), 8)
      assert.equal(calls, 1)
      assert.equal((await holdfast.jobs({ queue: 'scoring' })).jobs.length, 1)
      await worker.stop()
    }),
  )

  const failing: readonly (readonly [
    how: string,
    state: string,
    (holdfast: Holdfast, id: string) => Promise<unknown>,
  ])[] = [
    ['dies', 'dead', async (holdfast) => (await holdfast.claim(['child']))[0]?.dead(new Error('no paper'))],
    ['is cancelled', 'cancelled', (holdfast, id) => holdfast.cancel(id)],
    ['is deleted', 'deleted', (holdfast, id) => holdfast.delete(id)],
  ]
  for (const [how, state, end] of failing)
    test(
      `a child that ${how} fails its call with CHILD_FAILED, and the error is recorded`,
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow('flow', {}, async (flow) => {
          const failed = await flow
            .call('print', 'child', {})
            .catch(({ code, facts }) => [code, facts.state, facts.child])
          await flow.sleep('short', 1)
          return failed
        })
        await using _ = holdfast.work(flow)
        const id = await parkedRun(holdfast, flow, null)
        const child = (await holdfast.status(flow, id)).steps[0]?.child?.id ?? ''
        await end(holdfast, child)
        assert.deepEqual(await holdfast.result(id), ['CHILD_FAILED', state, child])
        const [step] = (await holdfast.status(flow, id)).steps
        assert.equal(step?.state, 'failed')
        assert.match(step?.error?.message ?? '', state === 'dead' ? /is dead: no paper/ : new RegExp(`was ${state}`))
      }),
    )

  test(
    'a child that is a flow and fails by its own verdict fails its call; uncaught, the run is dead at once',
    inWorld(async ({ holdfast }) => {
      const child = defineFlow('child', {}, (flow) => flow.fail('out of paper'))
      const flow = defineFlow('flow', {}, (flow) => flow.call('print', child, null))
      await using _ = holdfast.work([[flow], [child]])
      const { id } = await holdfast.start(flow, null)
      await rejects(holdfast.result(id), 'JOB_DEAD')
      const { error, attempts } = await readJob(holdfast, id)
      assert.deepEqual([error?.code, attempts], ['CHILD_FAILED', 1])
      assert.match(error?.message ?? '', /has failed: out of paper/)
    }),
  )

  test(
    'children that are called together run together, and a refused one fails its own call',
    inWorld(async ({ holdfast }) => {
      const square = defineQueue('square', { payload: z.number(), result: z.number() })
      const flow = defineFlow('flow', {}, async (flow) => {
        const called = [1, 2, 3].map((n) => flow.call(`square ${n}`, square, n))
        const refused = flow.call('refused', square, 'x' as never).catch(({ code }) => code)
        return [...(await Promise.all(called)), await refused]
      })
      await using _ = holdfast.work([[flow], [square, ({ payload }) => payload ** 2]])
      const { id } = await holdfast.start(flow, null)
      assert.deepEqual(await holdfast.result(id), [1, 4, 9, 'INVALID_PAYLOAD'])
    }),
  )
}

function cancelTests(inWorld: InWorld): void {
  test(
    'a parked run that is cancelled is woken, and ends as cancelled without running its function again',
    inWorld(async ({ holdfast }) => {
      let executions = 0
      const flow = defineFlow('flow', {}, async (flow) => {
        executions += 1
        await flow.signal('never')
      })
      await using _ = holdfast.work(flow)
      const id = await parkedRun(holdfast, flow, null)
      const ended = heard(holdfast, 'flow.ended')
      assert.equal(await holdfast.cancel(id), 'requested')
      assert.equal((await ended)[0]?.state, 'cancelled')
      await rejects(holdfast.result(id), 'JOB_CANCELLED')
      assert.equal(executions, 1)
      assert.equal((await holdfast.status(flow, id)).state, 'cancelled')
    }),
  )

  test(
    'a run that is cancelled while a step runs has its signals aborted, and ends as cancelled with what the step recorded',
    inWorld(async ({ holdfast }) => {
      const begun = Promise.withResolvers<void>()
      let after = 'not called'
      let aborted: unknown
      const flow = defineFlow('flow', {}, async (flow) => {
        flow.abortSignal.addEventListener('abort', () => {
          aborted = flow.abortSignal.reason.code
        })
        await flow.step('work', async ({ signal, effects }) => {
          begun.resolve()
          await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
          effects.put('undone', true)
        })
        after = 'called'
      })
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await begun.promise
      await holdfast.cancel(id)
      await rejects(holdfast.result(id), 'JOB_CANCELLED')
      assert.deepEqual([after, aborted], ['not called', 'JOB_CANCELLED'])
      assert.equal((await holdfast.kv.get('undone'))?.value, true)
      assert.equal((await holdfast.status(flow, id)).steps[0]?.state, 'done')
    }),
  )

  test(
    'a run whose code ignores the cancel ends as cancelled at its next checkpoint',
    inWorld(async ({ holdfast }) => {
      const cancelled = Promise.withResolvers<void>()
      const begun = Promise.withResolvers<void>()
      let after = 'not called'
      const flow = defineFlow('flow', {}, async (flow) => {
        await flow.step('work', async () => {
          begun.resolve()
          await cancelled.promise
        })
        await flow.step('next', () => {
          after = 'called'
        })
      })
      await using _ = holdfast.work(flow)
      const { id } = await holdfast.start(flow, null)
      await begun.promise
      await holdfast.cancel(id)
      cancelled.resolve()
      await rejects(holdfast.result(id), 'JOB_CANCELLED')
      assert.equal(after, 'not called')
    }),
  )

  test(
    'a worker that stops interrupts its runs: they go back at no cost, and resume behind what is recorded',
    inWorld(async ({ holdfast, another }) => {
      const calls: string[] = []
      const begun = Promise.withResolvers<void>()
      const flow = defineFlow('flow', {}, async (flow) => {
        await flow.step('first', () => void calls.push('first'))
        return flow.step('second', async ({ signal, attempt }) => {
          calls.push(`second ${attempt}`)
          if (calls.length > 2) return 'done'
          begun.resolve()
          throw await abortOf(signal)
        })
      })
      const { id } = await holdfast.start(flow, null)
      const other = await another()
      const worker = other.work(flow)
      await begun.promise
      await worker.stop({ grace: 0 })
      const { state, attempts } = await readJob(holdfast, id)
      assert.deepEqual([state, attempts], ['ready', 0])
      await using _ = holdfast.work(flow)
      assert.equal(await holdfast.result(id), 'done')
      assert.deepEqual(calls, ['first', 'second 1', 'second 1'])
    }),
  )
}
