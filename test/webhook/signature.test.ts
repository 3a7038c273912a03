// What a receiver can rely on.
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import test from 'node:test'
import { retryAfterMs } from '../../src/webhook/retry-after.ts'
import { signatureHeaders, verifyWebhook } from '../../src/webhook/signature.ts'

const body = '{"total":7}'
const id = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'

test('what was signed is verified, also by plain HMAC', () => {
  const headers = signatureHeaders(id, body, ['s1'], Date.now())
  assert.equal(verifyWebhook({ secret: 's1', headers, body })?.id, id)
  assert.equal(verifyWebhook({ secret: 's1', headers: new Headers(headers), body: Buffer.from(body) })?.id, id)
  const plain = createHmac('sha256', 's1').update(`${headers['holdfast-timestamp']}.${id}.${body}`).digest('hex')
  assert.equal(headers['holdfast-signature'], `v1=${plain}`)
})

test('while secrets are being changed either side may be first', () => {
  const both = signatureHeaders(id, body, ['new', 'old'], Date.now())
  for (const secret of ['new', 'old', ['other', 'old']]) assert.ok(verifyWebhook({ secret, headers: both, body }))
  const old = signatureHeaders(id, body, ['old'], Date.now())
  assert.ok(verifyWebhook({ secret: ['new', 'old'], headers: old, body }))
  assert.equal(verifyWebhook({ secret: 'new', headers: old, body }), null)
})

test('what was changed on its way, is too old, from the future, or is not signed at all is not', () => {
  const headers = signatureHeaders(id, body, ['s1'], Date.now())
  const fails = (changed: object, text = body) =>
    assert.equal(verifyWebhook({ secret: 's1', headers: { ...headers, ...changed }, body: text }), null)
  fails({}, `${body} `)
  fails({ 'holdfast-id': id.replace('0', '1') })
  fails({ 'holdfast-timestamp': String(Number(headers['holdfast-timestamp']) + 1) })
  for (const signature of [
    '',
    'v1=',
    'v1=00',
    `v2=${headers['holdfast-signature'].slice(3)}`,
    'v1=zz'.padEnd(67, 'z'),
  ]) {
    fails({ 'holdfast-signature': signature })
  }
  assert.equal(verifyWebhook({ secret: 's1', headers: {}, body }), null)
  for (const late of [-301_000, 301_000]) {
    const then = signatureHeaders(id, body, ['s1'], Date.now() + late)
    assert.equal(verifyWebhook({ secret: 's1', headers: then, body }), null)
    assert.ok(verifyWebhook({ secret: 's1', headers: then, body, toleranceMs: 600_000 }))
  }
})

test('a missing secret is an error, and its message never shows one', () => {
  for (const secret of ['', [], undefined, ['good', ''], 'x'.repeat(2_000)]) {
    assert.throws(
      () => verifyWebhook({ secret: secret as string, headers: {}, body }),
      (error: Error) => {
        assert.match(error.message, /^secret is 1 to 10 texts/)
        assert.doesNotMatch(error.message, /xxx|good/)
        return true
      },
    )
  }
})

test('Retry-After is seconds or a date', () => {
  const now = Date.parse('2030-01-01T00:00:00Z')
  assert.equal(retryAfterMs('120', now), 120_000)
  assert.equal(retryAfterMs('Tue, 01 Jan 2030 00:01:00 GMT', now), 60_000)
  assert.equal(retryAfterMs('Mon, 31 Dec 2029 00:01:00 GMT', now), 0)
  for (const nonsense of [undefined, '', 'soon', '-5', '1.5', '2030-01-01'])
    assert.equal(retryAfterMs(nonsense, now), null)
})
