// Listeners are code of the application: what they throw or reject with is reported, and stops nothing.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import test from 'node:test'
import { runInNewContext } from 'node:vm'
import { Events } from '../../src/events.ts'

const listeners: Readonly<Record<string, () => unknown>> = {
  throws: () => {
    throw new Error('no')
  },
  rejects: () => Promise.reject(new Error('no')),
  'rejects in another realm': runInNewContext('(async () => { throw new Error("no") })'),
}

for (const [what, listener] of Object.entries(listeners)) {
  test(`a listener that ${what} becomes a process warning`, async () => {
    const events = new Events()
    events.on('worker.stopped', listener as () => void)
    const warned = once(process, 'warning')
    events.emit('worker.stopped', { worker: 'w' })
    const [warning] = await warned
    assert.match(String(warning), /no/)
  })
}
