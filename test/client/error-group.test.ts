// Which errors are one group.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { errorGroup, groupMessage } from '../../src/job/error-group.ts'
import type { JobError } from '../../src/job/record.ts'

const stack = (line: number, name = 'charge') =>
  `Error: no\n    at node:internal/fetch:12:3\n    at ${name} (file:///srv/app-${line}/src/pay.js:${line}:9)\n    at main`

const declined: JobError = { name: 'CardError', message: 'Card 4711 of ada@example.com was declined', stack: stack(12) }

test('errors that differ in numbers, ids, addresses and lines are one group', () => {
  const others: JobError[] = [
    { ...declined, message: 'Card 99 of bob@example.org was declined' },
    { ...declined, message: 'Card 0191e8a2-1b1c-7c2d-8e3f-a1b2c3d4e5f6 of c@d was declined', stack: stack(4_000) },
    { ...declined, message: 'Card 4711 of ada@example.com was declined\nwith a second line 5' },
  ]
  for (const other of others) assert.equal(errorGroup(other), errorGroup(declined))
})

test('errors that differ in name, code, words or top frame are different groups', () => {
  const others: (JobError | null)[] = [
    { ...declined, name: 'Error' },
    { ...declined, code: 'E_CARD' },
    { ...declined, message: 'Card 4711 of ada@example.com was stolen' },
    { ...declined, stack: stack(12, 'refund') },
    { message: 'Card 4711 of ada@example.com was declined' },
    null,
  ]
  const groups = [declined, ...others].map(errorGroup)
  assert.equal(new Set(groups).size, groups.length)
})

test('the code of a cause tells errors apart that have the same message', () => {
  const failed = (code: string): JobError => ({
    name: 'TypeError',
    message: 'fetch failed',
    causes: [{ message: 'no code' }, { message: 'connect', code }],
  })
  assert.notEqual(errorGroup(failed('ECONNREFUSED')), errorGroup(failed('ENOTFOUND')))
  assert.equal(errorGroup(failed('ENOTFOUND')), errorGroup(failed('ENOTFOUND')))
})

test('the message of a group has no numbers and no ids', () => {
  assert.equal(groupMessage(declined), 'Card # of # was declined')
  const refused = { message: 'connect ECONNREFUSED 127.0.0.1:5432' }
  assert.equal(groupMessage(refused), 'connect ECONNREFUSED #')
  assert.equal(groupMessage({ message: 'Lease of worker web-3/4411 expired' }), 'Lease of worker # expired')
})

test('a fingerprint is short, and a long or odd message costs little', () => {
  for (const message of [
    '',
    '\n\n',
    '#'.repeat(1e6),
    '1a'.repeat(1e6),
    '@'.repeat(1e6),
    '-.'.repeat(1e6),
    'ä'.repeat(1e6),
  ]) {
    assert.match(errorGroup({ message }), /^[0-9a-f]{16}$/)
    assert.ok(Buffer.byteLength(groupMessage({ message })) <= 300)
  }
})
