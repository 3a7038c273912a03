// What the compiler promises to authors of handlers. `tsc` checks every line; a `@ts-expect-error` fails the type check as soon
// as the line below it is no longer an error. No worker is started: the handlers are only declared.

import { test } from 'node:test'
import { z } from 'zod'
import {
  defineQueue,
  type Fate,
  type Handler,
  type Holdfast,
  type Job,
  type Pair,
  type Worker,
} from '../../src/index.ts'
import { handlerJob } from '../../src/testing/index.ts'

/** Compiles only if the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function same<A, B>(_: Same<A, B>): void {}

const welcome = defineQueue('welcome', {
  payload: z.object({ userId: z.string(), at: z.string().transform((text) => new Date(text)) }),
  result: z.object({ sent: z.string().transform((text) => text === 'yes') }),
})
const plain = defineQueue<{ readonly n: number }, string>('plain')
const tick = defineQueue('tick')

type WelcomeOut = { userId: string; at: Date }
type WelcomeResult = { sent: string }

function oneQueue(holdfast: Holdfast): void {
  const worker = holdfast.work(welcome, async (job) => {
    same<typeof job, Job<WelcomeOut, WelcomeResult>>(true)
    return { sent: 'yes' }
  })
  same<typeof worker, Worker>(true)

  holdfast.work(welcome, () => ({ sent: 'yes' }))
  holdfast.work(welcome, (job) => job.snooze('5m'))
  holdfast.work(welcome, async (job) => (job.attempt > 1 ? job.release() : { sent: 'no' }))
  holdfast.work(welcome, (job) => job.outcome('saved', { sent: 'yes' }, { warning: 'late' }))
  holdfast.work(welcome, new URL('file:///handler.js'), { threads: 2 })

  // @ts-expect-error: the handler sees a Date
  holdfast.work(welcome, (job) => void job.payload.at.length)
  // @ts-expect-error: there is no such field
  holdfast.work(welcome, (job) => void job.payload.user)
  // @ts-expect-error: what is returned is the result's input, a text
  holdfast.work(welcome, () => ({ sent: true }))
  // @ts-expect-error: the same, awaited
  holdfast.work(welcome, async () => ({ sent: true }))
  // @ts-expect-error: no result at all
  holdfast.work(welcome, () => 'yes')
  // @ts-expect-error: the result of an outcome is checked too
  holdfast.work(welcome, (job) => job.outcome('saved', { sent: true }))
  // @ts-expect-error: not a duration
  holdfast.work(welcome, (job) => job.snooze('5 minutes'))
  // @ts-expect-error: there is no such option
  holdfast.work(welcome, () => undefined, { concurency: 2 })
}

function severalQueues(holdfast: Holdfast): void {
  holdfast.work(
    [
      [
        welcome,
        (job) => {
          same<typeof job, Job<WelcomeOut, WelcomeResult>>(true)
          return { sent: 'yes' }
        },
      ],
      [
        plain,
        async (job) => {
          same<typeof job.payload, { readonly n: number }>(true)
          return String(job.payload.n)
        },
        { weight: 2 },
      ],
      ['by-name', (job) => same<typeof job.payload, unknown>(true)],
      [holdfast.queue(plain), (job) => job.payload.n.toFixed()],
      [tick, new URL('file:///handler.js'), { threads: { count: 2 } }],
    ],
    { concurrency: 20 },
  )

  // Handlers that are declared elsewhere fit too.
  const handler: Handler<WelcomeOut, WelcomeResult> = ({ payload }) => ({ sent: payload.userId })
  const pair: Pair<typeof plain> = [plain, ({ payload }) => String(payload.n)]
  holdfast.work([[welcome, handler], pair])

  holdfast.work([
    // @ts-expect-error: each pair is checked separately: n is a number
    [plain, (job) => job.payload.n.length],
    [welcome, (job) => ({ sent: job.payload.at.toISOString() })],
  ])
  holdfast.work([
    [plain, (job) => String(job.payload.n)],
    // @ts-expect-error: a wrong result
    [welcome, () => ({ sent: true })],
  ])
  // @ts-expect-error: a handler of another queue
  holdfast.work([[plain, handler]])
  // @ts-expect-error: there is no such option
  holdfast.work([[plain, () => 'x', { wieght: 2 }]])
}

function otherNames(holdfast: Holdfast): void {
  holdfast.work('by-name', (job) => same<typeof job.payload, unknown>(true))
  holdfast.work<{ url: string }, number>('by-name', (job) => job.payload.url.length)
  holdfast.work('*', (job) => same<typeof job, Job<unknown, unknown>>(true))
  holdfast.work(holdfast.queue(welcome), (job) => {
    same<typeof job, Job<WelcomeOut, WelcomeResult>>(true)
    return { sent: 'yes' }
  })
  holdfast.work(holdfast.queue<{ url: string }, number>('inline'), (job) => job.payload.url.length)
  // @ts-expect-error: the result is a number
  holdfast.work(holdfast.queue<{ url: string }, number>('inline'), (job) => job.payload.url)
}

function insideHandlers(job: Job<WelcomeOut, WelcomeResult>): Fate<WelcomeResult> {
  job.effects.enqueue(plain, { n: 1 }, { delay: '5m' })
  job.effects.enqueue(welcome, { userId: 'u1', at: '2030-01-01' })
  job.effects.enqueue('by-name', { anything: 'goes' })
  // @ts-expect-error: n is a number
  job.effects.enqueue(plain, { n: 'one' })
  // @ts-expect-error: what goes in is text
  job.effects.enqueue(welcome, { userId: 'u1', at: new Date() })
  // @ts-expect-error: effects are written with the settlement, not in a transaction of the caller
  job.effects.enqueue(plain, { n: 1 }, { tx: {} })
  // @ts-expect-error: sent is a text
  job.outcome('saved', { sent: 1 })
  return job.outcome('saved', { sent: 'yes' })
}

test('what handlers get and may return is inferred', () => {
  const inert = { work: () => undefined, queue: () => undefined } as unknown as Holdfast
  oneQueue(inert)
  severalQueues(inert)
  otherNames(inert)
  insideHandlers(handlerJob(welcome, { userId: 'u1', at: '2030-01-01' }))
})
