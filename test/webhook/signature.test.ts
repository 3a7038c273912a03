// What a receiver can rely on.
//
//   HOLDFAST_SIGNATURE_SEED=1 npm test -- test/webhook/signature.test.ts      replays the cases of seed 1
import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { pathToFileURL } from 'node:url'
import fc from 'fast-check'
import { retryAfterMs } from '../../src/webhook/retry-after.ts'
import { signatureHeaders, verifyWebhook } from '../../src/webhook/signature.ts'
import { root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'

const seed = Number(process.env['HOLDFAST_SIGNATURE_SEED'] ?? Date.now() % 0x7fffffff)
const body = '{"total":7}'
const id = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'

test('a signed call is verified, also by plain HMAC', () => {
  const headers = signatureHeaders(id, body, ['s1'], Date.now())
  assert.equal(verifyWebhook({ secret: 's1', headers, body })?.id, id)
  assert.equal(verifyWebhook({ secret: 's1', headers: new Headers(headers), body: Buffer.from(body) })?.id, id)
  const plain = createHmac('sha256', 's1').update(`${headers['holdfast-timestamp']}.${id}.${body}`).digest('hex')
  assert.equal(headers['holdfast-signature'], `v1=${plain}`)
})

test('during a change of secrets either side may change first', () => {
  const both = signatureHeaders(id, body, ['new', 'old'], Date.now())
  for (const secret of ['new', 'old', ['other', 'old']]) assert.ok(verifyWebhook({ secret, headers: both, body }))
  const old = signatureHeaders(id, body, ['old'], Date.now())
  assert.ok(verifyWebhook({ secret: ['new', 'old'], headers: old, body }))
  assert.equal(verifyWebhook({ secret: 'new', headers: old, body }), null)
})

test('a call that was changed, is too old, is from the future, or has no signature is not verified', () => {
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

test('no other split of the same bytes into id, time and body is verified', (t) => {
  t.diagnostic(`HOLDFAST_SIGNATURE_SEED=${seed}`)
  const dotted = fc.array(fc.oneof(fc.constant(id), fc.string({ maxLength: 8 }), fc.nat().map(String)), {
    maxLength: 6,
  })
  const bodies = fc.oneof(
    fc.json(),
    fc.string(),
    dotted.map((parts) => parts.join('.')),
  )
  fc.assert(
    fc.property(fc.uuid(), bodies, (jobId, sent) => {
      const headers = signatureHeaders(jobId, sent, ['s1'], Date.now())
      const timestamp = headers['holdfast-timestamp']
      assert.equal(verifyWebhook({ secret: 's1', headers, body: sent })?.id, jobId)
      for (const split of splitsOf(`${timestamp}.${jobId}.${sent}`)) {
        if (split.timestamp === timestamp && split.id === jobId) continue
        const forged = { ...headers, 'holdfast-id': split.id, 'holdfast-timestamp': split.timestamp }
        for (const body of [split.body, Buffer.from(split.body)])
          assert.equal(
            verifyWebhook({ secret: 's1', headers: forged, body, toleranceMs: 1e15 }),
            null,
            JSON.stringify(split),
          )
      }
    }),
    { seed, numRuns: 500 },
  )
})

test('the code in the guide for receivers accepts and refuses the same calls', async (t) => {
  t.diagnostic(`HOLDFAST_SIGNATURE_SEED=${seed}`)
  await using scratch = await scratchDirectory()
  const guide = readFileSync(join(root, 'docs/guides/webhooks.md'), 'utf8')
  const recipe = [...guide.matchAll(/```ts\n(.*?)```/gs)].find(([, code]) => code?.includes('isGenuine'))?.[1]
  const file = join(scratch.path, 'recipe.ts')
  writeFileSync(file, recipe as string)
  const { isGenuine } = (await import(pathToFileURL(file).href)) as { isGenuine: IsGenuine }
  fc.assert(
    fc.property(fc.uuid(), fc.string(), (jobId, text) => {
      const sent = `x.${text}`
      const headers = signatureHeaders(jobId, sent, ['old', 's1'], Date.now())
      assert.ok(isGenuine('s1', headers, Buffer.from(sent)))
      assert.ok(!isGenuine('s2', headers, Buffer.from(sent)))
      assert.ok(!isGenuine('s1', headers, Buffer.from(`${sent}.`)))
      for (const split of splitsOf(`${headers['holdfast-timestamp']}.${jobId}.${sent}`)) {
        if (split.id === jobId) continue
        const forged = { ...headers, 'holdfast-id': split.id, 'holdfast-timestamp': split.timestamp }
        assert.ok(!isGenuine('s1', forged, Buffer.from(split.body)), JSON.stringify(split))
      }
    }),
    { seed, numRuns: 300 },
  )
})

type IsGenuine = (secret: string, headers: Record<string, string>, body: Buffer) => boolean

test('no other id, no other time and no other body is verified', (t) => {
  t.diagnostic(`HOLDFAST_SIGNATURE_SEED=${seed}`)
  const other = fc.record({
    id: fc.option(fc.uuid()),
    secondsLater: fc.option(fc.nat(200)),
    body: fc.option(fc.string()),
  })
  fc.assert(
    fc.property(fc.uuid(), fc.string(), other, (jobId, sent, { id: otherId, secondsLater, body: otherBody }) => {
      const headers = signatureHeaders(jobId, sent, ['s1'], Date.now())
      const timestamp = String(Number(headers['holdfast-timestamp']) + (secondsLater ?? 0))
      const forged = { ...headers, 'holdfast-id': otherId ?? jobId, 'holdfast-timestamp': timestamp }
      const received = otherBody ?? sent
      const isSame = forged['holdfast-id'] === jobId && received === sent && (secondsLater ?? 0) === 0
      assert.equal(verifyWebhook({ secret: 's1', headers: forged, body: received }) !== null, isSame)
    }),
    { seed, numRuns: 500 },
  )
})

test('an id that is not a job id is neither signed nor verified', () => {
  const bad = ['', 'x', `${id}.`, `${id}.{"to"`, id.toUpperCase(), ` ${id}`, `${id}, ${id}`, `{${id}}`]
  for (const odd of bad) {
    assert.throws(() => signatureHeaders(odd, body, ['s1'], Date.now()), /id/)
    const now = String(Math.floor(Date.now() / 1_000))
    const signature = createHmac('sha256', 's1').update(`${now}.${odd}.${body}`).digest('hex')
    const headers = { 'holdfast-id': odd, 'holdfast-timestamp': now, 'holdfast-signature': `v1=${signature}` }
    assert.equal(verifyWebhook({ secret: 's1', headers, body }), null, odd)
  }
})

function splitsOf(signed: string) {
  const dots = [...signed.matchAll(/\./g)].map(({ index }) => index)
  return dots.flatMap((first, i) =>
    dots.slice(i + 1).map((second) => ({
      timestamp: signed.slice(0, first),
      id: signed.slice(first + 1, second),
      body: signed.slice(second + 1),
    })),
  )
}

test('a missing secret is an error, and no message shows a secret', () => {
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
