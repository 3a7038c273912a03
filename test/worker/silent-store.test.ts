import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { Events } from '../../src/events.ts'
import { Outage } from '../../src/worker/outage.ts'

const away = new HoldfastError('STORE_UNAVAILABLE', 'away')

test('a call from before the store was back that fails later does not report the store as away again', async () => {
  const { emitted, outage, pass } = setup()
  const late = Promise.withResolvers<string>()
  let asked = 0
  const slow = outage.survive(() => (++asked === 1 ? late.promise : Promise.resolve('answer')))
  pass()
  let tries = 0
  const refusedOnce = () => (++tries === 1 ? Promise.reject(away) : Promise.resolve('answer'))
  assert.equal(await outage.survive(refusedOnce), 'answer')
  pass()
  late.reject(away)
  assert.equal(await slow, 'answer')
  assert.deepEqual(emitted, ['store.down', 'store.up'])
})

test('a store that answers nothing for ten seconds is away until it answers', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const { emitted, outage } = setup()
  const answer = Promise.withResolvers<string>()
  const asked = outage.survive(() => answer.promise)
  t.mock.timers.tick(9_999)
  assert.deepEqual(emitted, [])
  t.mock.timers.tick(1)
  assert.match(String(outage.error), /not answered for 10 s/)
  answer.resolve('at last')
  assert.equal(await asked, 'at last')
  assert.equal(outage.error, null)
  assert.deepEqual(emitted, ['store.down', 'store.up'])
})

function setup() {
  const events = new Events()
  const emitted: string[] = []
  events.onAll((name) => emitted.push(name))
  let now = 0
  const pass = () => {
    now += 1_000
  }
  const after = (ms: number, call: () => void) => {
    const timer = setImmediate(() => {
      now += ms
      call()
    })
    return () => clearImmediate(timer)
  }
  return { emitted, pass, outage: new Outage('worker', events, { now: () => now, after }) }
}
