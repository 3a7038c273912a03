import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ProgressRequest } from '../../src/store/store.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'
import { ProgressBoard } from '../../src/worker/progress-board.ts'
import type { Run } from '../../src/worker/run.ts'

/** A board whose sends are written down, and answered when the test says so where it wants to. */
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

test('the first word goes out at once, later ones four times a second, the newest of each job in one call', async () => {
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

test('a job that has ended is not told of any more, and nothing is sent for nobody', async () => {
  const { board, sent, advance } = setup()
  const run = runOf('a')
  board.note(run, 0.1, null)
  board.forget(run)
  await advance(1_000)
  assert.deepEqual(sent, [])
})

test('while a call is on its way no other sets out; then the newest word does', async () => {
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

test('what cannot be sent is dropped, and the next word is sent all the same', async () => {
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

test('stopped, it sends nothing more', async () => {
  const { board, sent, advance } = setup()
  board.note(runOf('a'), 0.1, null)
  board.stop()
  await advance(1_000)
  assert.deepEqual(sent, [])
})
