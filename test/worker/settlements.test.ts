import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Events } from '../../src/events.ts'
import type { Settlement } from '../../src/job/transition.ts'
import { systemTimers } from '../../src/runtime/clock.ts'
import type { SettleAnswer, SettleRequest } from '../../src/store/store.ts'
import { Outage } from '../../src/worker/outage.ts'
import type { Run } from '../../src/worker/run.ts'
import { Settlements } from '../../src/worker/settlements.ts'

const done: SettleAnswer = { state: 'done', runAt: null, enqueued: [] }
const plain: Settlement = { as: 'done', result: null, effects: null }
/** No part of the store or the worker makes such a settlement. */
const broken = { as: 'done', result: null, effects: undefined } as unknown as Settlement

test('a settlement that cannot be weighed fails alone; those beside it and after it are sent', async () => {
  const { settlements, ends, run } = setup((requests) => {
    if (requests.some(({ settlement }) => settlement === broken)) throw new TypeError('it has no effects')
    return requests.map(() => done)
  })
  settlements.add(run('a'), plain, 0)
  settlements.add(run('b'), broken, 0)
  settlements.add(run('c'), plain, 0)
  await settlements.drain(5_000, Promise.resolve())
  assert.deepEqual(ends.toSorted(), ['a answered', 'b gave up: it has no effects', 'c answered'])
  settlements.add(run('d'), plain, 0)
  await settlements.drain(5_000, Promise.resolve())
  assert.equal(ends.at(-1), 'd answered')
  assert.equal(settlements.size, 0)
  settlements.end()
})

test('a flush that the store never answers is given up when the time to drain is over', async () => {
  const { settlements, ends, run } = setup(() => new Promise<never>(() => {}))
  settlements.add(run('a'), plain, 0)
  await settlements.drain(50, Promise.resolve())
  assert.deepEqual(
    ends.map((end) => end.slice(0, 25)),
    ['a gave up: The worker stop'.slice(0, 25)],
  )
  assert.equal(settlements.size, 0)
})

function setup(settle: (requests: readonly SettleRequest[]) => SettleAnswer[] | Promise<SettleAnswer[]>) {
  const events = new Events()
  const ends: string[] = []
  const settlements = new Settlements({
    ...{ worker: 'w', events, timers: systemTimers, outage: new Outage('w', events, systemTimers) },
    settle: async (requests) => settle(requests),
    settling: () => {},
    settled: () => {},
  })
  const run = (id: string) =>
    ({
      claimed: { id, fence: 'f' },
      answered: () => void ends.push(`${id} answered`),
      gaveUp: (error: Error) => void ends.push(`${id} gave up: ${error.message}`),
    }) as unknown as Run
  return { settlements, ends, run }
}
