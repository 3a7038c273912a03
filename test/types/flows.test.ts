// What the compiler promises to authors of flows, and to their callers. Nothing is started: the functions are only declared.

import { test } from 'node:test'
import { z } from 'zod'
import { defineFlow, defineQueue, type FlowStatus, type Holdfast } from '../../src/index.ts'

/** Compiles only if the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function same<A, B>(_: Same<A, B>): void {}

const when = z.string().transform((text) => new Date(text))
const scoring = defineQueue('scoring', {
  payload: z.object({ n: z.number() }),
  result: z.object({ score: z.number() }),
})
const mail = defineQueue<string>('mail')

const document = defineFlow(
  'document',
  {
    payload: z.object({ url: z.string(), at: when }),
    result: z.object({ pages: z.number() }),
    partial: z.object({ page: z.number() }),
    signals: { verdict: z.object({ ok: z.boolean(), at: when }), stop: z.null() },
  },
  async (flow, { url, at }) => {
    same<typeof at, Date>(true)
    const pages = await flow.step('pages', ({ attempt }) => url.length + attempt)
    same<typeof pages, number>(true)
    const maybe = await flow.step('maybe', async () => 'x', { optional: true })
    same<typeof maybe, string | undefined>(true)
    await flow.publish({ page: 1 })
    // @ts-expect-error: the partial result has a page
    await flow.publish({ pages: 1 })
    const verdict = await flow.signal('verdict')
    same<typeof verdict, { ok: boolean; at: Date }>(true)
    const late = await flow.signal('verdict', { timeout: '1d' })
    same<typeof late, { ok: boolean; at: Date } | null>(true)
    // @ts-expect-error: there is no such signal
    await flow.signal('other')
    const score = await flow.call('score', scoring, { n: pages })
    same<typeof score, { score: number }>(true)
    // @ts-expect-error: the payload of the child is checked
    await flow.call('wrong', scoring, { m: 1 })
    // @ts-expect-error: the id of a child follows from the run
    await flow.call('wrong', scoring, { n: 1 }, { id: 'x' })
    if (pages > 9) return flow.fail('too long')
    if (pages > 8) return flow.cancel()
    if (pages > 7) return flow.done({ pages }, { outcome: 'long' })
    return { pages }
  },
)

// @ts-expect-error: the result has pages
defineFlow('wrong', { result: z.object({ pages: z.number() }) }, async () => ({ page: 1 }))
defineFlow('nothing', {}, async () => {})
const plain = defineFlow('plain', { signals: { go: z.number() } }, async (_, { n }: { n: number }) => n)
const stated = defineFlow<{ n: number }, string>('stated', { attempts: 2 }, (_, { n }) => String(n))

async function callers(holdfast: Holdfast): Promise<void> {
  await holdfast.start(document, { url: 'x', at: '2030-01-01' }, { labels: { a: 'b' } })
  // @ts-expect-error: the input of `at` is a text
  await holdfast.start(document, { url: 'x', at: new Date() })
  await holdfast.start(plain, { n: 1 })
  // @ts-expect-error: n is a number
  await holdfast.start(plain, { n: 'x' })
  await holdfast.start(stated, { n: 1 })
  await holdfast.signal(document, 'id', 'verdict', { ok: true, at: '2030-01-01' })
  await holdfast.signal(document, { key: 'k' }, 'stop', null, { ttl: '1d' })
  // @ts-expect-error: ok is a boolean
  await holdfast.signal(document, 'id', 'verdict', { ok: 1, at: '' })
  // @ts-expect-error: there is no such signal
  await holdfast.signal(document, 'id', 'other', 1)
  for await (const partial of holdfast.follow(document, 'id')) same<typeof partial, { page: number }>(true)
  const status = await holdfast.status(document, 'id')
  same<typeof status, FlowStatus<{ pages: number }, { page: number }>>(true)
  const result = await holdfast.queue(document).result('id')
  same<typeof result, { pages: number }>(true)
  const said = await holdfast.queue(stated).result('id')
  same<typeof said, string>(true)
  holdfast.work(document)
  holdfast.work(document, { concurrency: 2 })
  holdfast.work([[document], [stated, { concurrency: 2 }], [mail, (job) => same<typeof job.payload, string>(true)]])
  // @ts-expect-error: there is no such option
  holdfast.work(document, { concurency: 2 })
}

test('payload, result, partial result and signals of a flow are inferred at both ends', () => {
  void callers
})
