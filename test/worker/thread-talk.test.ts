// Log lines of a handler never fail its job, and the messages of a thread never flood its worker.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { open } from '../../src/index.ts'
import { readJob } from '../conformance/expect.ts'
import talk from './handlers/talkers.ts'

const module = new URL('./handlers/talkers.ts', import.meta.url)

describe('a log line whose facts are not an object', () => {
  for (const [place, handler] of [
    ['in the main thread', talk],
    ['in a thread', module],
  ] as const)
    test(`is logged ${place}, and the job is done`, async () => {
      await using holdfast = await open('sqlite::memory:', { logger: false })
      const logged: unknown[] = []
      holdfast.on('job.log', ({ facts }) => logged.push(facts))
      holdfast.work('talk', handler as typeof talk)
      for (const facts of ['text', 7, null, ['a'], { rows: 3 }]) {
        const { id } = await holdfast.queue('talk').enqueue({ facts })
        await holdfast.result(id)
        assert.equal((await readJob(holdfast, id)).state, 'done')
      }
      assert.deepEqual(logged, [{ facts: 'text' }, { facts: 7 }, {}, { facts: ['a'] }, { rows: 3 }])
    })
})

test('a thread that logs in a loop sends some of the lines, and the number of lines that it left out', async () => {
  await using holdfast = await open('sqlite::memory:', { logger: false })
  const lines: string[] = []
  let leftOut = 0
  holdfast.on('job.log', ({ message, facts }) => {
    if (typeof facts['linesLeftOut'] === 'number') leftOut += facts['linesLeftOut']
    else lines.push(message)
  })
  holdfast.work('talk', module)
  const { id } = await holdfast.queue('talk').enqueue({ facts: {}, lines: 50_000 })
  await holdfast.result(id)
  assert.ok(lines.length >= 100 && lines.length < 20_000, `${lines.length} lines`)
  assert.equal(lines.length + leftOut, 50_000)
  assert.equal(lines[0], 'line 0')
})
