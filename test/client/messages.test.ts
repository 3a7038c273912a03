// Messages for wrong options name what is wrong, in words.
import assert from 'node:assert/strict'
import test from 'node:test'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { toMs } from '../../src/runtime/duration.ts'

test('the bounds of a duration are in words', () => {
  assert.throws(() => toMs(-1, 'delay'), /or milliseconds, at most 100 years; got -1\.$/)
  assert.throws(() => toMs('9d', 'lease', { min: 1_000, max: 86_400_000 }), /, from 1 s to 1 d; got "9d"\.$/)
})

test('a queue that a worker names twice is in the message', async () => {
  await using holdfast = await open('sqlite::memory:', { logger: false })
  const handler = { queue: defineQueue('mail'), handler: async () => null }
  const twice = [handler, handler].map(({ queue, handler: run }) => [queue, run] as const)
  assert.throws(() => holdfast.work(twice as never), /queue mail is named twice\.$/)
})

test('an option that is missing is named, with its call and what to write', async () => {
  await using holdfast = await open('sqlite::memory:', { logger: false })
  const find = () => []
  const calls: [() => unknown, RegExp][] = [
    [
      () => holdfast.batch({} as never, []),
      /^holdfast\.batch needs the option name: write name: 'letters of march'\.$/,
    ],
    [() => holdfast.getBatch({} as never), /^holdfast\.getBatch needs the option key: write key: 'march'\.$/],
    [
      () => holdfast.getBatch(undefined as never),
      /^the name of a batch must be its id, or \{ key \} of its submission/,
    ],
    [
      () => holdfast.schedule('x', {} as never),
      /^holdfast\.schedule needs the option cron: write cron: '30 2 \* \* \*'\.$/,
    ],
    [
      () => holdfast.schedule('x', { cron: '@daily' } as never),
      /^holdfast\.schedule needs the option queue: write queue: /,
    ],
    [() => holdfast.reaper('x', {} as never), /^holdfast\.reaper needs the option every: write every: '1m'\.$/],
    [() => holdfast.reaper('x', { every: '1m' } as never), /^holdfast\.reaper needs the option find: write find: /],
    [() => holdfast.reaper('x', { every: '1m', find } as never), /^holdfast\.reaper needs the option enqueue: /],
    [() => defineQueue('x', { onDead: {} as never }), /^onDead of a queue needs the option queue: write queue: /],
    [
      () => holdfast.queue('x').enqueue(1, { dedup: {} as never }),
      /^dedup of an enqueue needs the option key: write key: /,
    ],
  ]
  for (const [call, message] of calls) {
    await assert.rejects(async () => call(), { code: 'INVALID_OPTION', message })
  }
})
