// Flows: steps are recorded, repeated and found again, with their effects, on every store.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { type HoldfastError, isHoldfastError } from '../../src/errors.ts'
import { defineFlow, Permanent, type Step } from '../../src/index.ts'
import { abortOf, heard, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld, StoreUnderTest } from './world.ts'

const soon = { base: '1ms', jitter: 0 } as const

export function flowStepTests(inWorld: InWorld, { runsSql }: StoreUnderTest): void {
  describe('steps of a flow', () => {
    test(
      'a step whose outcome is recorded is never run again: later executions get what it returned',
      inWorld(async ({ holdfast }) => {
        const calls: string[] = []
        const seen: unknown[] = []
        const flow = defineFlow('flow', { backoff: { base: 0 } }, async (flow) => {
          const first = await flow.step('first', () => {
            calls.push('first')
            return { pages: [1, null], at: 'x' }
          })
          const nothing = await flow.step('nothing', () => void calls.push('nothing'))
          seen.push(first, nothing)
          if (seen.length < 6) throw new Error('between steps')
          return flow.step('last', async () => {
            calls.push('last')
            return 7
          })
        })
        await using _ = holdfast.work(flow)
        const { id, status } = await holdfast.start(flow, null)
        assert.equal(status, 'created')
        assert.equal(await holdfast.result(id), 7)
        assert.deepEqual(calls, ['first', 'nothing', 'last'])
        const one = { pages: [1, null], at: 'x' }
        assert.deepEqual(seen, [one, undefined, one, undefined, one, undefined])
        const names = (await holdfast.status(flow, id)).steps.map(({ name, state }) => `${name} ${state}`)
        assert.deepEqual(names, ['first done', 'nothing done', 'last done'])
      }),
    )

    test(
      'payload and result are typed and checked by their schemas, and a result that does not fit fails the attempt',
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow(
          'flow',
          { payload: z.object({ n: z.number() }), result: z.object({ m: z.number() }), attempts: 1 },
          async (_, { n }) => (n > 0 ? { m: n } : ({ m: 'none' } as unknown as { m: number })),
        )
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, { n: 1 })
        assert.deepEqual(await holdfast.queue(flow).result(id), { m: 1 })
        await rejects(holdfast.start(flow, { n: 'x' } as never), 'INVALID_PAYLOAD')
        const bad = await holdfast.start(flow, { n: 0 })
        await rejects(holdfast.result(bad.id), 'JOB_DEAD')
        assert.equal((await readJob(holdfast, bad.id)).error?.code, 'INVALID_PAYLOAD')
      }),
    )

    test(
      'a name that is used twice in one execution is refused, and says so',
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow('flow', {}, async (flow) => {
          await flow.step('a', () => 1)
          return flow.step('a', () => 2).catch((error) => error.code)
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 'INVALID_STATE')
      }),
    )

    test(
      'a failed attempt is recorded and repeated; the key of the step stays, and differs between steps and runs',
      inWorld(async ({ holdfast }) => {
        const keys = new Map<string, string[]>()
        const attempts: number[] = []
        const note = (what: string, { key }: Step) => keys.set(what, [...(keys.get(what) ?? []), key])
        const flow = defineFlow('flow', { step: { backoff: soon } }, async (flow, run: number) => {
          await flow.step('a', (step) => {
            note(`a${run}`, step)
            attempts.push(step.attempt)
            if (step.attempt < 3) throw new Error(`no ${step.attempt}`)
          })
          await flow.step('b', (step) => void note(`b${run}`, step))
        })
        await using _ = holdfast.work(flow)
        const retrying = heard(holdfast, 'flow.step.ended', 2)
        const { id } = await holdfast.start(flow, 1)
        await holdfast.result(id)
        assert.deepEqual(attempts, [1, 2, 3])
        assert.deepEqual(
          (await retrying).map(({ step, state, attempt, error }) => [step, state, attempt, error?.message]),
          [
            ['a', 'retrying', 1, 'no 1'],
            ['a', 'retrying', 2, 'no 2'],
          ],
        )
        const [step] = (await holdfast.status(flow, id)).steps
        assert.deepEqual([step?.name, step?.state, step?.attempts], ['a', 'done', 3])
        await holdfast.result((await holdfast.start(flow, 2)).id)
        assert.equal(new Set(keys.get('a1')).size, 1)
        assert.equal(new Set([...keys.values()].flat()).size, 4)
        assert.match(keys.get('a1')?.[0] ?? '', /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
        assert.equal((await readJob(holdfast, id)).attempts, 1)
      }),
    )

    test(
      'a step that has failed for good throws STEP_FAILED with its cause, again in every execution, and uncaught ends the run',
      inWorld(async ({ holdfast }) => {
        let calls = 0
        const errors: HoldfastError[] = []
        const flow = defineFlow(
          'flow',
          { backoff: { base: 0 }, step: { attempts: 2, backoff: soon } },
          async (flow) => {
            try {
              await flow.step('charge', () => {
                calls += 1
                throw new TypeError('no card')
              })
            } catch (error) {
              errors.push(error as HoldfastError)
              if (errors.length === 1) throw new Error('of its own')
              throw error
            }
          },
        )
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        await rejects(holdfast.result(id), 'JOB_DEAD')
        assert.equal(calls, 2)
        const [first, second] = errors
        assert.ok(first && second)
        for (const error of [first, second]) {
          assert.ok(isHoldfastError(error, 'STEP_FAILED'))
          assert.equal(error.message, 'Step "charge" has failed after 2 attempts: no card')
          assert.deepEqual(error.facts, { step: 'charge', attempts: 2 })
          assert.equal((error.cause as Error).message, 'no card')
          assert.equal((error.cause as Error).name, 'TypeError')
        }
        const { error, history } = await readJob(holdfast, id)
        assert.equal(error?.code, 'STEP_FAILED')
        assert.equal(history.length, 2, 'the recorded failure is not repeated')
        const { state, steps } = await holdfast.status(flow, id)
        assert.deepEqual([state, steps[0]?.state, steps[0]?.error?.message], ['dead', 'failed', 'no card'])
      }),
    )

    test(
      'Permanent, and an error that is not retryable, fail a step at once; a function that catches it goes on',
      inWorld(async ({ holdfast }) => {
        const calls: string[] = []
        const flow = defineFlow('flow', {}, async (flow) => {
          const failing = async (name: string, error: Error, retryable?: (error: unknown) => boolean) => {
            const options = retryable ? { retryable } : {}
            const fail = () => {
              calls.push(name)
              throw error
            }
            return flow.step(name, fail, options).catch(({ code }) => code)
          }
          return [
            await failing('permanent', new Permanent('never')),
            await failing('policy', new Error('no'), () => false),
          ]
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.deepEqual(await holdfast.result(id), ['STEP_FAILED', 'STEP_FAILED'])
        assert.deepEqual(calls, ['permanent', 'policy'])
      }),
    )

    test(
      'an optional step that has failed returns undefined, and the run ends as partial with the errors readable',
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow('flow', { backoff: { base: 0 } }, async (flow) => {
          const summary = await flow.step(
            'summary',
            () => {
              throw new Error('too long')
            },
            { attempts: 1, optional: true },
          )
          if (flow.attempt === 1) throw new Error('once more')
          return { summary: summary ?? null }
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.deepEqual(await holdfast.result(id), { summary: null })
        assert.equal((await readJob(holdfast, id)).outcome, 'partial')
        const { state, errors, steps } = await holdfast.status(flow, id)
        assert.deepEqual(
          [state, errors.map(({ step, error }) => [step, error.message])],
          ['succeeded', [['summary', 'too long']]],
        )
        assert.equal(steps[0]?.state, 'failed')
      }),
    )

    test(
      'a step that takes longer than its timeout has its signal aborted and has failed, also if it ignores the signal',
      inWorld(async ({ holdfast }) => {
        let reason: unknown
        const flow = defineFlow('flow', { step: { attempts: 1, timeout: '30ms' } }, async (flow) => {
          const polite = flow.step('polite', async ({ signal }) => {
            reason = await abortOf(signal)
            throw reason
          })
          const deaf = flow.step('deaf', () => new Promise(() => {}))
          return (await Promise.allSettled([polite, deaf])).map(
            (each) => (each as PromiseRejectedResult).reason.message,
          )
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        const message = (name: string) =>
          `Step "${name}" has failed: Step "${name}" took longer than its timeout of 30 ms.`
        assert.deepEqual(await holdfast.result(id), [message('polite'), message('deaf')])
        assert.ok(isHoldfastError(reason, 'JOB_TIMEOUT'))
      }),
    )

    test(
      'the timeout of the job counts for the code between steps, and not while a step runs',
      inWorld(async ({ holdfast }) => {
        const pass = () => new Promise((resolve) => setTimeout(resolve, 150))
        const flow = defineFlow('flow', { timeout: '300ms', attempts: 1 }, async (flow, hangs: boolean) => {
          for (const name of ['a', 'b', 'c']) await flow.step(name, pass)
          if (hangs) await new Promise(() => {})
          return 'done'
        })
        await using _ = holdfast.work(flow, { unwind: 0 })
        assert.equal(await holdfast.result((await holdfast.start(flow, false)).id), 'done')
        const { id } = await holdfast.start(flow, true)
        await rejects(holdfast.result(id), 'JOB_DEAD')
        assert.equal((await readJob(holdfast, id)).error?.code, 'JOB_TIMEOUT')
      }),
    )

    test(
      'the effects of a step land with its record, in one commit; refused, they fail that attempt, and no other step',
      inWorld(async ({ holdfast }) => {
        let version: number | null = 77
        const flow = defineFlow(
          'flow',
          { backoff: { base: 0 }, step: { attempts: 3, backoff: soon } },
          async (flow) => {
            const [first] = await Promise.all([
              flow.step('guarded', ({ effects, attempt }) => {
                effects.put('log', attempt)
                effects.compareAndSet('guard', version, attempt)
                effects.enqueue('mail', { attempt })
                version = null
                return attempt
              }),
              flow.step('beside', ({ effects }) => effects.put('beside', true)),
              flow.step('plain', () => 1),
            ])
            if (flow.attempt === 1 && !(await holdfast.kv.get('again'))) {
              await holdfast.kv.put('again', true)
              throw new Error('once more')
            }
            return first
          },
        )
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 2)
        assert.deepEqual(
          [await holdfast.kv.get('log'), await holdfast.kv.get('guard'), await holdfast.kv.get('beside')].map(
            (entry) => entry?.value,
          ),
          [2, 2, true],
        )
        const { jobs } = await holdfast.jobs({ queue: 'mail', include: ['payload'] })
        assert.deepEqual(
          jobs.map(({ payload }) => payload),
          [{ attempt: 2 }],
        )
        const { steps } = await holdfast.status(flow, id)
        assert.deepEqual(steps.map(({ name, attempts }) => `${name} ${attempts}`).sort(), [
          'beside 1',
          'guarded 2',
          'plain 1',
        ])
      }),
    )

    if (runsSql)
      test(
        'statements of the template sql are run once, with their values as parameters',
        inWorld(async ({ holdfast }) => {
          const flow = defineFlow('flow', { backoff: { base: 0 } }, async (flow) => {
            await flow.step('make', ({ sql }) => sql`create table flow_notes (n int unique, said text)`)
            for (const n of [1, 2])
              await flow.step(`add ${n}`, ({ sql }) => sql`insert into flow_notes values (${n}, ${`'${n}`})`)
            if (flow.attempt === 1 && !(await holdfast.kv.get('again'))) {
              await holdfast.kv.put('again', 1)
              throw new Error('once more')
            }
            return flow
              .step('again', ({ sql }) => sql`insert into flow_notes values (${2}, ${'x'})`, { attempts: 1 })
              .catch(({ code }) => code)
          })
          await using _ = holdfast.work(flow)
          const { id } = await holdfast.start(flow, null)
          assert.equal(await holdfast.result(id), 'STEP_FAILED')
          const drop = defineFlow('drop', {}, (flow) => flow.step('drop', ({ sql }) => sql`drop table flow_notes`))
          await using _drop = holdfast.work(drop)
          await holdfast.result((await holdfast.start(drop, null)).id)
        }),
      )

    test(
      'an output that is no JSON, or too large, fails the attempt of its step',
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow('flow', { step: { attempts: 1 } }, async (flow) => {
          const outputs = { map: new Map(), large: 'x'.repeat(1024 * 1024) }
          const codes: unknown[] = []
          for (const [name, output] of Object.entries(outputs))
            codes.push(await flow.step(name, () => output).catch((error) => error.cause.code))
          return codes
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.deepEqual(await holdfast.result(id), ['INVALID_PAYLOAD', 'RESULT_TOO_LARGE'])
      }),
    )

    test(
      'effects that are staged after a step has ended are refused',
      inWorld(async ({ holdfast }) => {
        let kept: Step | undefined
        const flow = defineFlow('flow', {}, async (flow) => {
          await flow.step('a', (step) => {
            step.effects.put('k', 1)
            kept = step
          })
          try {
            kept?.effects.put('k', 2)
            return 'staged'
          } catch (error) {
            return (error as HoldfastError).code
          }
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 'INVALID_STATE')
        assert.equal((await holdfast.kv.get('k'))?.value, 1)
      }),
    )

    test(
      'a step that runs once is not repeated when its worker is lost: the next execution throws STEP_UNCERTAIN',
      inWorld(async ({ holdfast, another }) => {
        let starts = 0
        const begun = Promise.withResolvers<void>()
        const flow = defineFlow('flow', { backoff: { base: 0 } }, async (flow, isCaught: boolean) => {
          const charged = flow.step(
            'charge',
            async ({ signal }) => {
              starts += 1
              begun.resolve()
              throw await abortOf(signal)
            },
            { once: true },
          )
          return isCaught ? charged.catch(({ code }) => code) : charged
        })
        const { id } = await holdfast.start(flow, true)
        const other = await another()
        const lost = other.work(flow, { name: 'lost', unwind: 0 })
        await begun.promise
        assert.deepEqual(
          (await holdfast.status(flow, id)).steps.map(({ name, state }) => [name, state]),
          [['charge', 'running']],
        )
        await holdfast.releaseWorker('lost')
        await lost.stop({ grace: 0 })
        await using _ = holdfast.work(flow)
        assert.equal(await holdfast.result(id), 'STEP_UNCERTAIN')
        assert.equal(starts, 1)
      }),
    )

    test(
      'a step that runs once and fails has failed for good',
      inWorld(async ({ holdfast }) => {
        let starts = 0
        const flow = defineFlow('flow', {}, async (flow) => {
          const charge = () => {
            starts += 1
            throw new Error('declined')
          }
          await rejects(flow.step('twice', charge, { once: true, attempts: 2 }), 'INVALID_OPTION')
          return flow.step('charge', charge, { once: true }).catch(({ code }) => code)
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 'STEP_FAILED')
        assert.equal(starts, 1)
      }),
    )

    test(
      'steps that finish together are recorded together, and a function that returns after its last step needs no checkpoint',
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow('flow', {}, async (flow) => {
          const all = await Promise.all([1, 2, 3].map((n) => flow.step(`s${n}`, async () => n)))
          return flow.step('last', () => all.length)
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 3)
        assert.equal((await holdfast.status(flow, id)).steps.length, 4)
      }),
    )

    test(
      'each new outcome starts the attempts over: 200 steps whose code fails once after each of them end done',
      inWorld(async ({ holdfast }) => {
        const failed = new Set<number>()
        let runs = 0
        const flow = defineFlow('flow', { attempts: 2, backoff: { base: 0 } }, async (flow) => {
          runs += 1
          for (let n = 0; n < 200; n++) {
            assert.equal(await flow.step(`s${n}`, () => n), n)
            if (failed.has(n)) continue
            failed.add(n)
            throw new Error(`after step ${n}`)
          }
          return 'done'
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 'done')
        assert.equal(runs, 201)
      }),
    )

    test(
      'without a new outcome they do not: publishes and failed attempts of steps leave a failing run to die at its cap',
      inWorld(async ({ holdfast }) => {
        let runs = 0
        const flow = defineFlow('flow', { attempts: 3, backoff: { base: 0 } }, async (flow) => {
          runs += 1
          await flow.publish({ runs }, { name: `run ${runs}` })
          throw new Error('always')
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        await rejects(holdfast.result(id), 'JOB_DEAD')
        assert.equal(runs, 3)
        assert.deepEqual((await holdfast.status(flow, id)).partial, { runs: 3 })
      }),
    )

    test(
      'an outcome beside a step that is in flight does not start them over: a step that loses its worker is the cause',
      inWorld(async ({ holdfast, another }) => {
        let runs = 0
        const flow = defineFlow('flow', { attempts: 2 }, async (flow) => {
          runs += 1
          const poison = flow.step('poison', async ({ signal }) => {
            throw await abortOf(signal)
          })
          await flow.step(`beside ${runs}`, () => runs)
          await holdfast.kv.put(`run ${runs}`, 1)
          await poison
        })
        const { id } = await holdfast.start(flow, null)
        for (const run of [1, 2]) {
          const other = await another()
          const worker = other.work(flow, { name: `w${run}`, unwind: 0 })
          while ((await holdfast.kv.get(`run ${run}`)) === null) await new Promise(setImmediate)
          // A checkpoint that is under way keeps the lease for a moment.
          while ((await holdfast.releaseWorker(`w${run}`)).released === 0) await new Promise(setImmediate)
          await worker.stop({ grace: 0 })
        }
        assert.equal(await stateOf(holdfast, id), 'dead')
      }),
    )

    test(
      'a run whose lease is lost is executed by another worker, and the first writes nothing any more',
      inWorld(async ({ holdfast, another }) => {
        const hold = Promise.withResolvers<void>()
        const begun = Promise.withResolvers<void>()
        const flow = defineFlow('flow', {}, async (flow, _: null) => {
          await flow.step('a', () => 1)
          return flow.step('b', async ({ effects }) => {
            begun.resolve()
            await hold.promise
            effects.put('wrote', 'first')
            return 'first'
          })
        })
        const same = defineFlow('flow', {}, async (flow, _: null) => {
          await flow.step('a', () => assert.fail('it is recorded'))
          return flow.step('b', () => 'second')
        })
        const { id } = await holdfast.start(flow, null)
        const other = await another()
        const lost = heard(other, 'lease.lost')
        await using _ = other.work(flow, { name: 'first' })
        await begun.promise
        await holdfast.releaseWorker('first')
        await using _second = holdfast.work(same, { name: 'second' })
        // whichever of the two workers claims it, `b` has run only once to its end
        const result = holdfast.result(id)
        hold.resolve()
        assert.ok(['first', 'second'].includes((await result) as string))
        await lost
      }),
    )

    test(
      'errors of options are errors of the call, and the run goes on',
      inWorld(async ({ holdfast }) => {
        const flow = defineFlow('flow', { signals: { go: z.number() } }, async (flow) => {
          await rejects(
            flow.step('', () => 1),
            'INVALID_OPTION',
          )
          await rejects(flow.step('x', null as never), 'INVALID_OPTION')
          await rejects(
            flow.step('x', () => 1, { atempts: 1 } as never),
            'INVALID_OPTION',
          )
          await rejects(flow.sleep('x', 'long' as never), 'INVALID_OPTION')
          await rejects(flow.signal('stop' as never), 'INVALID_OPTION')
          await rejects(flow.call('x', 'q', 1, { id: 'no' } as never), 'INVALID_OPTION')
          return 'done'
        })
        await using _ = holdfast.work(flow)
        const { id } = await holdfast.start(flow, null)
        assert.equal(await holdfast.result(id), 'done')
      }),
    )
  })
}
