import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ProgressRequest } from '../../src/store/store.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'
import { ProgressBoard } from '../../src/worker/progress-board.ts'
import type { Run } from '../../src/worker/run.ts'

/** A board whose calls are recorded; a test may answer them itself. */
function setup() {
  const timers = new VirtualTimers()
  const sent: [at: number, requests: readonly ProgressRequest[]][] = []
  let answer = (): Promise<unknown> => Promise.resolve()
  const board = new ProgressBoard(timers, (requests) => {
    sent.push([timers.now(), requests])
    return answer()
  })
  const advance = async (ms: number) => {
    await settle()
    timers.advance(ms, () => {})
    await settle()
  }
  return { board, sent, advance, answerWith: (next: () => Promise<unknown>) => (answer = next) }
}

function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

function runOf(id: string): Run {
  return { claimed: { id, fence: `fence of ${id}` } } as Run
}

test('the first report is sent at once, later ones four times a second, the newest of each job in one call', async () => {
  const { board, sent, advance } = setup()
  const [a, b] = [runOf('a'), runOf('b')]
  board.note(a, 0.1, null)
  await advance(0)
  board.note(a, 0.2, 'half')
  board.note(b, 0.5, null)
  board.note(a, 0.3, 'more')
  await advance(249)
  assert.equal(sent.length, 1)
  await advance(1)
  assert.deepEqual(sent, [
    [0, [{ id: 'a', fence: 'fence of a', progress: 0.1, message: null }]],
    [
      250,
      [
        { id: 'a', fence: 'fence of a', progress: 0.3, message: 'more' },
        { id: 'b', fence: 'fence of b', progress: 0.5, message: null },
      ],
    ],
  ])
})

test('progress of a job that has ended is not sent, and no empty call is made', async () => {
  const { board, sent, advance } = setup()
  const run = runOf('a')
  board.note(run, 0.1, null)
  board.forget(run)
  await advance(1_000)
  assert.deepEqual(sent, [])
})

test('one call is in flight at a time; the next one has the newest report', async () => {
  const { board, sent, advance, answerWith } = setup()
  const run = runOf('a')
  const first = Promise.withResolvers<void>()
  answerWith(() => first.promise)
  board.note(run, 0.1, null)
  await advance(0)
  board.note(run, 0.2, null)
  await advance(1_000)
  board.note(run, 0.3, null)
  assert.equal(sent.length, 1)
  first.resolve()
  await advance(0)
  await settle()
  assert.deepEqual(
    sent.map(([, requests]) => requests[0]?.progress),
    [0.1, 0.3],
  )
})

test('a report that cannot be sent is dropped, and the next one is sent', async () => {
  const { board, sent, advance, answerWith } = setup()
  answerWith(() => Promise.reject(new Error('away')))
  board.note(runOf('a'), 0.1, null)
  await advance(0)
  await advance(1_000)
  assert.equal(sent.length, 1)
  board.note(runOf('a'), 0.2, null)
  await advance(0)
  assert.equal(sent.length, 2)
})

test('a stopped board sends nothing', async () => {
  const { board, sent, advance } = setup()
  board.note(runOf('a'), 0.1, null)
  board.stop()
  await advance(1_000)
  assert.deepEqual(sent, [])
})
