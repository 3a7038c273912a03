import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { Events } from '../../src/events.ts'
import { Outage } from '../../src/worker/outage.ts'

const away = new HoldfastError('STORE_UNAVAILABLE', 'away')

test('who asked before the store came back and is refused late does not say again that it is away', async () => {
  const { told, outage, pass } = setup()
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
  assert.deepEqual(told, ['store.down', 'store.up'])
})

test('a store that says nothing for ten seconds is away until it answers', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const { told, outage } = setup()
  const answer = Promise.withResolvers<string>()
  const asked = outage.survive(() => answer.promise)
  t.mock.timers.tick(9_999)
  assert.deepEqual(told, [])
  t.mock.timers.tick(1)
  assert.match(String(outage.error), /not answered for 10 s/)
  answer.resolve('at last')
  assert.equal(await asked, 'at last')
  assert.equal(outage.error, null)
  assert.deepEqual(told, ['store.down', 'store.up'])
})

function setup() {
  const events = new Events()
  const told: string[] = []
  events.onAll((name) => told.push(name))
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
  return { told, pass, outage: new Outage('worker', events, { now: () => now, after }) }
}
