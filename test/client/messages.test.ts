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
