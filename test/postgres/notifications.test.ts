// What a notification may contain. Every login of a database may send one, so its text is hostile until it was checked.
//
//   HOLDFAST_NOTIFICATIONS_SEED=1 npm test -- test/postgres/notifications.test.ts      replays the cases of seed 1
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { isJobId, isQueueName } from '../../src/job/names.ts'
import { newId } from '../../src/runtime/id.ts'
import {
  countMax,
  type Message,
  messageMaxBytes,
  Notifications,
  readMessage,
  textOf,
} from '../../src/store/postgres/wake-messages.ts'

const seed = Number(process.env['HOLDFAST_NOTIFICATIONS_SEED'] ?? Date.now() % 0x7fffffff)
const runs = { seed, numRuns: 20_000 }
const self = crypto.randomUUID()
const id = newId()

test('what this store sends is read unchanged', (t) => {
  t.diagnostic(`seed ${seed}`)
  const queue = fc.stringMatching(/^[A-Za-z0-9._:-]{1,255}$/)
  const ready = fc.array(fc.tuple(queue, fc.integer({ min: 1, max: countMax })), { maxLength: 20 })
  const cancels = fc.array(fc.uuid(), { maxLength: 20 })
  fc.assert(
    fc.property(ready, cancels, (ready, cancels) => {
      const notifications = new Notifications()
      notifications.addReady(ready)
      notifications.addCancels(cancels)
      if (notifications.isEmpty) return
      const read = readMessage(notifications.toText(self))
      assert.equal(read?.from, self)
      if (read.ready) assert.deepEqual(new Set(read.ready.map(([name]) => name)), new Set(ready.map(([name]) => name)))
      if (read.cancel) assert.deepEqual(new Set(read.cancel), new Set(cancels))
    }),
    { seed, numRuns: 1_000 },
  )
})

test('messages of callers’ transactions, of SQL and of the other forms are read', () => {
  assert.deepEqual(readMessage('{"ready": [["mail", 1]]}'), { ready: [['mail', 1]] })
  assert.deepEqual(readMessage('{"held": true}'), { held: true })
  assert.deepEqual(readMessage(JSON.stringify({ from: self })), { from: self })
  assert.deepEqual(readMessage(JSON.stringify({ from: self, probe: true })), { from: self, probe: true })
})

test('a count of jobs above the highest that is read is sent as that highest', () => {
  const notifications = new Notifications()
  notifications.addReady([['mail', Number.MAX_SAFE_INTEGER]])
  notifications.addReady([['mail', Number.MAX_SAFE_INTEGER]])
  assert.deepEqual(readMessage(notifications.toText(self))?.ready, [['mail', countMax]])
  const text = textOf({ from: self, ready: [['mail', Number.MAX_SAFE_INTEGER]] })
  assert.deepEqual(readMessage(text)?.ready, [['mail', countMax]])
})

const hostile: readonly unknown[] = [
  ...[null, true, 1, 'ready', [], {}, [[]], { from: null }, { from: 1 }, { from: 'me' }, { from: [self] }],
  ...[
    { held: false },
    { held: 1 },
    { from: self, probe: true, held: true },
    { ready: null },
    { ready: {} },
    { ready: [] },
    { ready: [null] },
    { ready: 'mail' },
    { ready: ['mail', 1] },
  ],
  ...[{ ready: [[]] }, { ready: [['mail']] }, { ready: [['mail', 1, 1]] }, { ready: [[1, 'mail']] }],
  ...[0, -1, 1.5, -1e9, 1e308, countMax + 1, '1', null, true, [1]].map((count) => ({ ready: [['mail', count]] })),
  ...['', 'a b', 'ü', 'a'.repeat(256), 'a\0b', null, 1, ['mail'], {}].map((name) => ({ ready: [[name, 1]] })),
  { ready: [...Array(2)].map(() => ['mail', 1]) },
  { ready: [['mail', 1], null] },
  ...[null, [], {}, id, [null], [1], [id, null], [id.toUpperCase()], [`${id}0`], [id, id]].map((cancel) => ({
    cancel,
  })),
  ...[false, 1, null, 'true'].map((probe) => ({ from: self, probe })),
  { probe: true },
  { from: self, probe: true, ready: [['mail', 1]] },
  { from: self, probe: true, cancel: [id] },
  { from: self, ready: [['mail', 1]], more: 1 },
  { constructor: 1 },
]

test('every other text is rejected', () => {
  for (const message of hostile) assert.equal(readMessage(JSON.stringify(message)), null, JSON.stringify(message))
  for (const text of [
    '',
    '{',
    'null',
    'NaN',
    '{"ready":[["mail",1]]',
    '{"__proto__":{"ready":[["mail",1]]}}',
    '\0',
    '"',
  ])
    assert.equal(readMessage(text), null, text)
  const long = JSON.stringify({ from: self, cancel: Array.from({ length: 1_000 }, newId) })
  assert.equal(readMessage(long), null, 'longer than any message that is sent')
})

test('any JSON is rejected, or is a message within all bounds', (t) => {
  t.diagnostic(`seed ${seed}`)
  fc.assert(
    fc.property(fc.oneof(fc.json(), fc.string()), (text) => isRejectedOrWithinBounds(text)),
    runs,
  )
})

test('a message with a part replaced, added or removed, or a letter changed, is rejected or within all bounds', (t) => {
  t.diagnostic(`seed ${seed}`)
  const real = fc.constantFrom<Message>(
    { from: self, ready: [['mail', 3]] },
    { ready: [['mail', 1]] },
    { from: self, cancel: [id] },
    { from: self, ready: [['a', 1], ['b', 2]], cancel: [id, newId()] }, // biome-ignore format: one message a line
    { from: self, probe: true },
    { from: self },
  )
  const part = fc.constantFrom('from', 'probe', 'ready', 'cancel', 'ready.0', 'ready.0.0', 'ready.0.1', 'cancel.0', 'x')
  fc.assert(
    fc.property(real, part, fc.option(fc.jsonValue()), (message, path, value) =>
      isRejectedOrWithinBounds(JSON.stringify(withReplaced(message, path.split('.'), value))),
    ),
    runs,
  )
  fc.assert(
    fc.property(real, fc.nat(), fc.string({ maxLength: 3 }), fc.nat(4), (message, at, text, removed) => {
      const sent = JSON.stringify(message)
      const cut = at % sent.length
      return isRejectedOrWithinBounds(sent.slice(0, cut) + text + sent.slice(cut + removed))
    }),
    runs,
  )
})

function withReplaced(value: unknown, [key, ...rest]: readonly string[], by: unknown): unknown {
  if (key === undefined) return by
  if (typeof value !== 'object' || value === null) return by
  const copy = (Array.isArray(value) ? [...value] : { ...value }) as Record<string, unknown>
  copy[key] = withReplaced(copy[key], rest, by)
  return copy
}

function isRejectedOrWithinBounds(text: string): boolean {
  const message = readMessage(text)
  if (message === null) return true
  const { from, probe, ready, cancel, ...rest } = message
  assert.deepEqual(rest, {})
  assert.ok(from === undefined || isJobId(from))
  assert.ok(probe === undefined || probe === true)
  assert.ok(from !== undefined || ready || cancel)
  assert.ok(Buffer.byteLength(text) <= messageMaxBytes)
  for (const pair of ready ?? []) {
    assert.equal(pair.length, 2)
    assert.ok(isQueueName(pair[0]))
    assert.ok(Number.isInteger(pair[1]) && pair[1] >= 1 && pair[1] <= countMax)
  }
  assert.ok((cancel ?? []).every(isJobId))
  return true
}
