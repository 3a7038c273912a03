import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { defineFlow, defineQueue } from '../../src/index.ts'
import { drain, openInMemory, runFlow } from '../../src/testing/index.ts'

const scoring = defineQueue<{ readonly pages: number }, number>('scoring')
const document = defineFlow(
  'document',
  {
    payload: z.object({ url: z.string() }),
    result: z.object({ score: z.number(), ok: z.boolean().nullable() }),
    partial: z.object({ pages: z.number() }),
    signals: { verdict: z.object({ ok: z.boolean() }) },
  },
  async (flow, { url }) => {
    const pages = await flow.step('extract', (): number => {
      throw new Error(`the network is not for tests: ${url}`)
    })
    await flow.publish({ pages })
    await flow.sleep('cool down', '10m')
    const verdict = await flow.signal('verdict', { timeout: '7d' })
    const score = await flow.call('score', scoring, { pages })
    return { score, ok: verdict?.ok ?? null }
  },
)
const children = { scoring: ({ payload }: { payload: unknown }) => (payload as { pages: number }).pages * 10 }

test('runFlow runs a flow to its end with fakes, signals and children, and skips its waits', async () => {
  const run = await runFlow(
    document,
    { url: 'x' },
    { steps: { extract: () => 3 }, signals: { verdict: [{ ok: true }] }, children },
  )
  assert.deepEqual([run.state, run.result, run.partial], ['succeeded', { score: 30, ok: true }, { pages: 3 }])
  assert.deepEqual(
    run.steps.map(({ name, state }) => `${name} ${state}`),
    ['extract done', 'cool down done', 'signal:verdict done', 'score done'],
  )
  const late = await runFlow(document, { url: 'x' }, { steps: { extract: () => 3 }, children })
  assert.deepEqual(late.result, { score: 30, ok: null })
})

test('runFlow answers how a run has failed, with the step and its error', async () => {
  const run = await runFlow(document, { url: 'x' }, { children })
  assert.deepEqual([run.state, run.error?.code, run.steps[0]?.attempts], ['dead', 'STEP_FAILED', 3])
  assert.equal(run.steps[0]?.error?.message, 'the network is not for tests: x')
})

test('runFlow answers that a run waits for what the test has not given', async () => {
  const endless = defineFlow('endless', {}, (flow) => flow.signal('never'))
  const run = await runFlow(endless, null)
  assert.deepEqual([run.state, run.steps[0]?.state], ['waiting', 'waiting'])
})

test('drain with a clock skips every wait of a flow, however short', async () => {
  const { holdfast, clock } = await openInMemory()
  const waits = defineFlow('waits', { step: { backoff: { base: '5s', jitter: 0 } } }, async (flow) => {
    await flow.sleep('short', '300ms')
    await flow.step('flaky', ({ attempt }) => {
      if (attempt < 3) throw new Error('busy')
    })
    await flow.sleep('long', '30d')
    return 'rested'
  })
  const began = clock.now()
  const { id } = await holdfast.start(waits, null)
  const { runs } = await drain(holdfast, [[waits]], { clock })
  assert.equal(await holdfast.result(id), 'rested')
  assert.equal(runs.at(-1)?.result, 'rested')
  assert.equal(clock.now() - began, 300 + 5_000 + 10_000 + 30 * 86_400_000)
  await holdfast.close()
})
