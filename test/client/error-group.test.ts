// Which errors are one group.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { errorGroup, type Mark, topFrame, withoutIds } from '../../src/job/error-group.ts'
import type { JobError } from '../../src/job/record.ts'

const stack = (line: number, name = 'charge') =>
  `Error: no\n    at node:internal/fetch:12:3\n    at ${name} (file:///srv/app-${line}/src/pay.js:${line}:9)\n    at main`

const declined: JobError = { name: 'CardError', message: 'Card 4711 of ada@example.com was declined', stack: stack(12) }

const fingerprint = (error: JobError | null) => errorGroup(error).fingerprint
const groupMessage = (error: JobError | null) => errorGroup(error).message

test('errors that differ in numbers, ids, addresses and lines are one group', () => {
  const others: JobError[] = [
    { ...declined, message: 'Card 99 of bob@example.org was declined' },
    { ...declined, message: 'Card 0191e8a2-1b1c-7c2d-8e3f-a1b2c3d4e5f6 of c@d was declined', stack: stack(4_000) },
    { ...declined, message: 'Card 4711 of ada@example.com was declined\nwith a second line 5' },
  ]
  for (const other of others) assert.equal(fingerprint(other), fingerprint(declined))
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
  const groups = [declined, ...others].map(fingerprint)
  assert.equal(new Set(groups).size, groups.length)
})

test('the code of a cause tells errors apart that have the same message', () => {
  const failed = (code: string): JobError => ({
    name: 'TypeError',
    message: 'fetch failed',
    causes: [{ message: 'no code' }, { message: 'connect', code }],
  })
  assert.notEqual(fingerprint(failed('ECONNREFUSED')), fingerprint(failed('ENOTFOUND')))
  assert.equal(fingerprint(failed('ENOTFOUND')), fingerprint(failed('ENOTFOUND')))
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
    assert.match(fingerprint({ message }), /^[0-9a-f]{16}$/)
    assert.ok(Buffer.byteLength(groupMessage({ message })) <= 300)
  }
})

/** The patterns of the first release. Fingerprints that are stored must not change. */
const first = {
  withoutIds: (text: string) =>
    text.replaceAll(/[\p{L}\p{N}_@.+-]*[\p{N}@][\p{L}\p{N}_@.+-]*/gu, '#').replaceAll(/#(?:[:,/]#)+/g, '#'),
  topFrame(stack: string): string {
    const frames = stack.split('\n').filter((line) => /^\s+at /.test(line))
    const frame = frames.find((line) => !line.includes('node:')) ?? frames[0] ?? ''
    const [, called = '', place = ''] = frame.match(/^\s+at (?:(.*) \()?(.*?)\)?$/) ?? []
    const file = place.replace(/(?::\d+){1,2}$/, '').replace(/[?#].*$/, '')
    return `${called} ${file.split(/[/\\]/).at(-1) ?? ''}`
  },
}

const pieces = fc.constantFrom(
  ...[
    'a',
    'ä',
    '字',
    '𝒳',
    '𝟘',
    '7',
    '²',
    '@',
    '_',
    '.',
    '+',
    '-',
    ':',
    ',',
    '/',
    '\\',
    '#',
    '?',
    ' ',
    '\t',
    '\r',
    '\u2028',
  ],
  ...[
    '\0',
    '\ud800',
    '\udc00',
    '(',
    ')',
    ' (',
    '    at ',
    '\n',
    '\n    at f (',
    'node:fs',
    ':12:3',
    ':7)',
    'card',
    'a1b2-c3',
  ],
)
const drawn = fc.array(pieces, { maxLength: 40 }).map((parts) => parts.join(''))

test('fingerprints are those of the first release', (t) => {
  const seed = Number(process.env['HOLDFAST_FUZZ_SEED'] ?? Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_FUZZ_SEED=${seed}`)
  const isSame = (text: string) => {
    assert.equal(withoutIds(text), first.withoutIds(text))
    const stack = `Error\n    at ${text}`
    assert.equal(topFrame(stack), first.topFrame(stack))
  }
  fc.assert(fc.property(drawn, isSame), { seed, numRuns: 20_000 })
})

test('each character of a message is looked at once, and a death reads its message and stack once', () => {
  let looks = 0
  const markOf = (): Mark => (++looks > 0 ? 'word' : 'gap')
  assert.equal(withoutIds('字'.repeat(1_200), markOf), '字'.repeat(1_200))
  assert.equal(looks, 1_200)

  const reads: string[] = []
  const error = new Proxy(declined, {
    get: (target, name) => {
      reads.push(String(name))
      return Reflect.get(target, name)
    },
  })
  errorGroup(error)
  for (const name of ['message', 'stack']) assert.equal(reads.filter((each) => each === name).length, 1)
})
