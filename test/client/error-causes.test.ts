// The causes of an error, as a job keeps them: bounded, whatever was thrown.
import assert from 'node:assert/strict'
import test from 'node:test'
import { runInNewContext } from 'node:vm'
import { bounds } from '../../src/job/bounds.ts'
import { byteLength } from '../../src/job/codec.ts'
import { causeChain, jobError, messageWithCauses } from '../../src/job/error.ts'
import { decodeError, encodeError } from '../../src/job/stored.ts'

function coded(message: string, code: string, options?: ErrorOptions): Error {
  return Object.assign(new Error(message, options), { code })
}

test('the chain of causes and the members of an AggregateError are kept, the nearest first', () => {
  const members = [coded('connect ECONNREFUSED ::1:1', 'ECONNREFUSED'), coded('127.0.0.1:1', 'ECONNREFUSED')]
  const aggregate = Object.assign(new AggregateError(members, '', { cause: 'a text' }), { code: 'ECONNREFUSED' })
  const { message, name, causes } = jobError(new TypeError('fetch failed', { cause: aggregate }))
  assert.deepEqual([message, name], ['fetch failed', 'TypeError'])
  const expected = [
    { message: 'ECONNREFUSED', name: 'AggregateError', code: 'ECONNREFUSED' },
    { message: 'a text' },
    { message: 'connect ECONNREFUSED ::1:1', name: 'Error', code: 'ECONNREFUSED' },
    { message: '127.0.0.1:1', name: 'Error', code: 'ECONNREFUSED' },
  ]
  assert.deepEqual(causes, expected)
  assert.deepEqual(
    jobError(new Error('again', { cause: causeChain(expected) })).causes,
    expected,
    'a chain of the list',
  )
  assert.equal(
    messageWithCauses({ message, causes: expected }),
    'fetch failed (caused by ECONNREFUSED; a text; connect ECONNREFUSED ::1:1)',
  )
})

test('an error without a cause has no list, and null is no cause', () => {
  assert.ok(!('causes' in jobError(new Error('alone'))))
  assert.ok(!('causes' in jobError(new Error('alone', { cause: null }))))
  assert.equal(messageWithCauses({ message: 'a: b', causes: [{ message: 'b' }] }), 'a: b', 'what the message says')
})

test('cycles, deep chains and huge values end at the bounds', () => {
  const first = new Error('first')
  const second = new AggregateError([first], 'second', { cause: first })
  first.cause = second
  assert.deepEqual(jobError(first).causes, [{ message: 'second', name: 'AggregateError' }])
  let deep = new Error('0')
  for (let n = 1; n < 100_000; n++) deep = new Error(String(n), { cause: deep })
  assert.equal(jobError(deep).causes?.length, bounds.errorCausesMax)
  const wide = new AggregateError(Array.from({ length: 100_000 }, (_, n) => new Error(String(n))))
  assert.equal(jobError(wide).causes?.length, bounds.errorCausesMax)
  const large = () =>
    Object.assign(new Error('é'.repeat(100_000)), { name: 'n'.repeat(9_999), code: 'c'.repeat(9_999) })
  const huge = Object.assign(new AggregateError([large(), large(), large()], 'x'.repeat(99_999)), {
    code: 'y'.repeat(9_999),
  })
  const { message, name, code, stack, causes = [] } = jobError(huge)
  const texts = [message, name, code, stack, ...causes.flatMap((cause) => Object.values(cause))]
  assert.ok(causes.length > 0)
  assert.ok(byteLength(texts.join('')) <= bounds.errorTextBytes)
})

test('a getter or proxy that throws loses only its own part', () => {
  const trap = () => {
    throw new Error('trap')
  }
  const guarded = Object.defineProperty(new Error('said'), 'cause', { get: trap })
  assert.deepEqual([jobError(guarded).message, jobError(guarded).causes], ['said', undefined])
  const unreadable = Object.defineProperty(new Error('never'), 'message', { get: trap })
  const proxy = new Proxy({}, { get: trap, getPrototypeOf: trap })
  const several = new AggregateError([unreadable, proxy, new Error('last')], 'several')
  assert.deepEqual(
    jobError(several).causes?.map(({ message }) => message),
    ['A cause that cannot be described.', 'A cause that cannot be described.', 'last'],
  )
  const revoked = Proxy.revocable([], {})
  revoked.revoke()
  assert.equal(jobError(Object.assign(new Error('kept'), { errors: revoked.proxy })).message, 'kept')
})

test('damaged causes of a stored error read as absent', () => {
  const error = { message: 'm', causes: [{ message: 'c' }] }
  assert.deepEqual(decodeError(encodeError(error)), error)
  for (const causes of ['x', {}, [1], [{ message: 1 }], [{ message: 'c', code: {} }]]) {
    assert.deepEqual(decodeError(JSON.stringify({ message: 'm', causes })), { message: 'm' })
  }
})

test('a thrown object with a cycle, a big integer or a getter that throws is kept as far as it can be, within its bound', () => {
  const thrown: Record<string, unknown> = { code: 7, big: 5n, list: [1, { a: 'b' }] }
  thrown['self'] = thrown
  thrown['twice'] = [thrown['list'], thrown['list']]
  Object.defineProperty(thrown, 'bad', {
    enumerable: true,
    get: () => {
      throw new Error('no')
    },
  })
  assert.deepEqual(JSON.parse(jobError(thrown).message), {
    ...{ code: 7, big: '5', list: [1, { a: 'b' }], self: '[cycle]' },
    twice: [
      [1, { a: 'b' }],
      [1, { a: 'b' }],
    ],
  })
  const { causes } = jobError(new Error('outer', { cause: thrown }))
  assert.match(causes?.[0]?.message ?? '', /"self":"\[cycle\]"/)

  const wide: Record<string, unknown> = { text: 'x'.repeat(100_000) }
  let deep = wide
  for (let i = 0; i < 50_000; i++) {
    const next = { up: wide }
    deep['next'] = next
    deep = next
  }
  assert.ok(byteLength(jobError(wide).message) <= bounds.errorTextBytes / 4)
})

test('an error of another realm is described as one of this realm, and so are its causes and members', () => {
  const thrown = runInNewContext(`
    const inner = Object.assign(new RangeError('inner'), { code: 'E_INNER' })
    const members = new AggregateError([new TypeError('member')], 'all', { cause: inner })
    Object.assign(new TypeError('outer', { cause: members }), { code: 'E_OUTER' })`)
  assert.ok(!(thrown instanceof Error))
  const { stack, ...described } = jobError(thrown)
  assert.match(stack ?? '', /^TypeError: outer\n/)
  assert.deepEqual(described, {
    message: 'outer',
    name: 'TypeError',
    code: 'E_OUTER',
    causes: [
      { message: 'all', name: 'AggregateError' },
      { message: 'inner', name: 'RangeError', code: 'E_INNER' },
      { message: 'member', name: 'TypeError' },
    ],
  })
})

test('an object with a message and a stack is an error; one with a message only is data', () => {
  assert.equal(jobError({ message: 'said', stack: 'at here', name: 'Odd' }).message, 'said')
  assert.equal(jobError({ message: 'said' }).message, '{"message":"said"}')
})

for (const property of ['name', 'message', 'stack', 'code', 'cause', 'errors']) {
  for (const isCause of [false, true]) {
    test(`a getter of ${property} that throws loses nothing else of ${isCause ? 'a cause' : 'an error'}`, () => {
      const whole = Object.assign(new TypeError('said', { cause: 'why' }), { code: 'E_CODE', errors: ['one'] })
      assert.ok(whole.stack) // the engine makes it of the name and the message when it is first read
      const broken = Object.defineProperty(whole, property, {
        get() {
          throw new Error('no')
        },
      })
      const described = isCause ? jobError(new Error('outer', { cause: broken })).causes?.[0] : jobError(broken)
      const { message, name, code } = described ?? {}
      const instead = `${isCause ? 'A cause' : 'Something was thrown'} that cannot be described.`
      assert.deepEqual(
        [message, name, code],
        [
          property === 'message' ? instead : 'said',
          property === 'name' ? undefined : 'TypeError',
          property === 'code' ? undefined : 'E_CODE',
        ],
      )
      const causes = jobError(broken).causes?.map((cause) => cause.message)
      assert.deepEqual(causes, property === 'cause' ? ['one'] : property === 'errors' ? ['why'] : ['why', 'one'])
      assert.equal(typeof jobError(broken).stack, property === 'stack' ? 'undefined' : 'string')
    })
  }
}

test('a name that cannot be made a text loses nothing else', () => {
  const named = Object.assign(new Error('said'), { name: Object.create(null) })
  const { message, name } = jobError(named)
  assert.deepEqual([message, name], ['said', undefined])
})
