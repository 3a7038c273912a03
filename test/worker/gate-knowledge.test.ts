// What a gate knows without a call to the store: when it reads, which answers it uses, and which events it emits.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isHoldfastError } from '../../src/errors.ts'
import { Events, type HoldfastEvents } from '../../src/events.ts'
import type { KvWrite } from '../../src/job/record.ts'
import { Kv } from '../../src/kv/kv.ts'
import type { KvEntry } from '../../src/store/store.ts'
import { Gate, type GateOptions } from '../../src/worker/gate/gate.ts'
import { GateClosed } from '../../src/worker/gate/gate-closed.ts'

/** A key-value store of one key, whose answers can be delayed or fail. */
function setup(options: GateOptions = { poll: '1h' }) {
  const events = new Events()
  const emitted: [string, unknown][] = []
  events.onAll((name, event) => emitted.push([name, event]))
  const store = {
    entry: null as KvEntry | null,
    reads: 0,
    isDown: false,
    /** What a read waits for after it has read the entry and before it answers. */
    readsBack: Promise.resolve() as Promise<void>,
    lastRead: Promise.withResolvers<void>(),
    put(value: unknown) {
      store.entry = { value: JSON.stringify(value), version: (store.entry?.version ?? 0) + 1, expiresAt: null }
    },
  }
  const kv = new Kv(
    {
      async get() {
        store.reads += 1
        store.lastRead.resolve()
        store.lastRead = Promise.withResolvers()
        if (store.isDown) throw new Error('no answer')
        const { entry } = store
        await store.readsBack
        return entry
      },
      async write(write: KvWrite) {
        assert.ok(write.as === 'compareAndSet')
        const applied = (store.entry?.version ?? null) === write.version
        if (applied) store.put(JSON.parse(write.value))
        return { applied, version: store.entry?.version ?? null }
      },
      scan: async () => ({ entries: [], next: null }),
    },
    true,
  )
  const gate = new Gate({ kv, events }, 'login', options)
  return { gate, store, events, emitted }
}

const closed = { open: false, reason: 'expired', closedAt: 0, by: 'w1', generation: 0 }

test('an open gate costs one read, however often it is passed; before the first use nothing is read', async () => {
  const { gate, store } = setup()
  assert.deepEqual([gate.isOpen, store.reads], [false, 0])
  for (let n = 0; n < 1_000; n++) await gate.whenOpen()
  assert.deepEqual([gate.isOpen, store.reads], [true, 1])
  assert.equal(gate.passNow().generation, 0)
  gate.stop()
})

test('a change by another process is known after a poll, and emitted once', async () => {
  const { gate, store, events, emitted } = setup({ poll: '10ms' })
  await gate.watch()
  const closing = nextEvent(events, 'gate.closed')
  store.put(closed)
  assert.deepEqual(await closing, { gate: 'login', reason: 'expired' })
  assert.equal(gate.isOpen, false)
  const opening = nextEvent(events, 'gate.opened')
  const entering = gate.whenOpen()
  store.put({ open: true })
  assert.ok((await opening).closedMs > 0)
  await entering
  assert.deepEqual(
    emitted.map(([name]) => name),
    ['gate.closed', 'gate.opened'],
  )
  gate.stop()
})

test('a gate that is not watched does not count as open, whatever was read before; whenOpen watches it', async () => {
  const { gate, store } = setup()
  await gate.close('before the work begins')
  await gate.open()
  assert.equal(gate.isOpen, false)
  await gate.whenOpen()
  assert.equal(gate.isOpen, true)
  gate.stop()
  assert.equal(gate.isOpen, false)
  store.put(closed)
  const entering = gate.whenOpen()
  await gate.watch()
  assert.equal(gate.isOpen, false)
  await gate.open()
  await entering
  assert.equal(gate.isOpen, true)
  gate.stop()
})

test('the first read emits an event if the gate is closed, and none if it is open', async () => {
  const open = setup()
  await open.gate.state()
  assert.deepEqual(open.emitted, [])
  const shut = setup()
  shut.store.put(closed)
  await shut.gate.state()
  await shut.gate.state()
  assert.deepEqual(shut.emitted, [['gate.closed', { gate: 'login', reason: 'expired' }]])
})

test('after stop the gate is read no more, unless a call waits for it', async () => {
  const { gate, store } = setup({ poll: '10ms' })
  store.put(closed)
  const entering = gate.whenOpen()
  await store.lastRead.promise
  await store.lastRead.promise
  gate.stop()
  await store.lastRead.promise
  store.put({ open: true })
  await entering
  const { reads } = store
  await new Promise((resolve) => setTimeout(resolve, 50))
  assert.equal(store.reads, reads)
  await gate.whenOpen()
  assert.equal(store.reads, reads + 1, 'the next call reads it again')
  gate.stop()
})

test('while the store is down the last known state stays, and calls that wait go on waiting', async () => {
  const { gate, store, emitted } = setup({ poll: '10ms' })
  await gate.watch()
  store.isDown = true
  await store.lastRead.promise
  await store.lastRead.promise
  assert.equal(gate.isOpen, true)
  await gate.whenOpen()
  store.isDown = false
  await gate.close('expired')
  const entering = gate.whenOpen()
  store.isDown = true
  await store.lastRead.promise
  await store.lastRead.promise
  assert.equal(gate.isOpen, false)
  store.put({ open: true })
  store.isDown = false
  await entering
  assert.deepEqual(
    emitted.map(([name]) => name),
    ['gate.closed', 'gate.opened'],
  )
  gate.stop()
})

test('a call before the first read rejects if the store is down', async () => {
  const { gate, store } = setup()
  store.isDown = true
  await assert.rejects(gate.whenOpen(), /no answer/)
  await assert.rejects(gate.pass(), /no answer/)
  store.isDown = false
  await gate.whenOpen()
  gate.stop()
})

test('the answer to a read that is older than a known change is dropped', async () => {
  const { gate, store, emitted } = setup()
  await gate.state()
  const { promise, resolve } = Promise.withResolvers<void>()
  store.readsBack = promise
  const late = gate.state()
  store.readsBack = Promise.resolve()
  await gate.close('expired')
  resolve()
  assert.equal((await late).open, false)
  assert.deepEqual(
    emitted.map(([name]) => name),
    ['gate.closed'],
  )
})

test('a signal ends the wait, whether it aborts before or during it', async () => {
  const { gate, store } = setup()
  store.put(closed)
  await assert.rejects(gate.whenOpen(AbortSignal.abort(new Error('before'))), /before/)
  const abort = new AbortController()
  const waiting = gate.pass({ signal: abort.signal })
  await gate.watch()
  abort.abort(new Error('meanwhile'))
  await assert.rejects(waiting, /meanwhile/)
  gate.stop()
})

test('no more than ten thousand calls wait for one gate', async () => {
  const { gate, store } = setup()
  store.put(closed)
  await gate.watch()
  const waiting = Array.from({ length: 10_000 }, () => gate.whenOpen())
  await assert.rejects(gate.whenOpen(), (error) => isHoldfastError(error, 'INVALID_STATE'))
  await gate.open()
  await Promise.all(waiting)
  gate.stop()
})

test('a foreign value under its key is read as open or closed, and never as an error', async () => {
  const { gate, store } = setup()
  for (const value of [null, 7, 'closed', [], {}, { open: 'no' }]) {
    store.put(value)
    assert.equal((await gate.state()).open, true, JSON.stringify(value))
  }
  store.put({ open: false, closedAt: 1e300, reason: 7 })
  const state = await gate.state()
  assert.deepEqual(state, { open: false, reason: 'no reason given', closedAt: new Date(0), by: null, generation: 0 })
})

test('GateClosed carries the reason of the handler', () => {
  const cause = new Error('403')
  const error = new GateClosed('session expired', { cause })
  assert.deepEqual(
    [error.name, error.reason, error.message, error.cause],
    [...['GateClosed', 'session expired', 'session expired'], cause],
  )
})

function nextEvent<Name extends 'gate.closed' | 'gate.opened'>(
  events: Events,
  name: Name,
): Promise<HoldfastEvents[Name]> {
  return new Promise((resolve) => {
    const stop = events.on(name, (event) => {
      stop()
      resolve(event)
    })
  })
}
