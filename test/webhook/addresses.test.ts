// Where webhooks may connect: by address, by name after it was resolved, and by the allow list.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import test from 'node:test'
import { AllowList, isPublicAddress } from '../../src/webhook/addresses.ts'
import { deliver } from '../../src/webhook/deliver.ts'
import { type ConnectRules, SafeConnect } from '../../src/webhook/safe-connect.ts'

test('public addresses may be called', () => {
  for (const address of ['1.1.1.1', '8.8.8.8', '93.184.216.34', '172.32.0.1', '2606:4700:4700::1111', '2a00:1450::1']) {
    assert.equal(isPublicAddress(address), true, address)
  }
})

test('private, loopback, link-local, multicast, unspecified, mapped, tunnelled and metadata addresses may not', () => {
  const refused = [
    ...['0.0.0.0', '0.1.2.3', '10.0.0.1', '100.64.0.1', '127.0.0.1', '127.255.255.254', '169.254.169.254'],
    ...['172.16.0.1', '172.31.255.255', '192.0.0.192', '192.0.2.1', '192.168.1.1', '198.18.0.1', '203.0.113.9'],
    ...['224.0.0.1', '239.255.255.255', '240.0.0.1', '255.255.255.255', '100.100.100.200', '168.63.129.16'],
    ...['::', '::1', '::ffff:127.0.0.1', '::ffff:8.8.8.8', '::ffff:7f00:1', '::8.8.8.8', '64:ff9b::7f00:1'],
    ...['fe80::1', 'fc00::1', 'fd00:ec2::254', 'ff02::1', '2001:db8::1', '2001::1', '2002:7f00:1::1', '100::1'],
    ...['', 'localhost', '1.1.1', '1.1.1.1.'],
  ]
  for (const address of refused) assert.equal(isPublicAddress(address), false, address)
})

test('a private address in the URL is refused in every notation', () => {
  const safeConnect = new SafeConnect(rules({}))
  for (const host of ['127.1', '0x7f.0.0.1', '2130706433', '[::1]', '[::ffff:127.0.0.1]', '0', '169.254.169.254']) {
    assert.throws(
      () => safeConnect.check(new URL(`http://${host}/`)),
      { name: 'Permanent', message: /not a public address/ },
      host,
    )
  }
  safeConnect.check(new URL('http://1.1.1.1/'))
})

test('a name is resolved once, and the connection goes to the address that was checked', async () => {
  await using server = await listening()
  let asked = 0
  // The first answer is allowed. A second lookup would get another answer, as in DNS rebinding.
  const resolve: ConnectRules['resolve'] = (_name, _options, answer) => {
    asked += 1
    answer(null, [{ address: asked === 1 ? '127.0.0.1' : '169.254.169.254', family: 4 }])
  }
  const safeConnect = new SafeConnect(rules({ allow: ['127.0.0.1'], resolve }))
  const answered = await deliver(callTo(`http://receiver.example:${server.port}/`), safeConnect)
  assert.deepEqual([answered.status, asked], [200, 1])
})

test('a name that resolves to a private address is refused, and nothing is sent', async () => {
  await using server = await listening()
  const resolve: ConnectRules['resolve'] = (_name, _options, answer) =>
    answer(null, [
      { address: '127.0.0.1', family: 4 },
      { address: '::1', family: 6 },
    ])
  const safeConnect = new SafeConnect(rules({ resolve }))
  await assert.rejects(deliver(callTo(`http://receiver.example:${server.port}/`), safeConnect), {
    name: 'Permanent',
    message: /receiver\.example, which resolves to 127\.0\.0\.1/,
  })
  assert.equal(server.calls.length, 0)
})

test('of several addresses only the public ones are called', () => {
  const addresses = [
    { address: '10.0.0.1', family: 4 },
    { address: '1.1.1.1', family: 4 },
  ]
  const safeConnect = new SafeConnect(rules({ resolve: (_name, _options, answer) => answer(null, addresses) }))
  safeConnect.lookup('receiver.example', { all: true }, (error, open) => {
    assert.deepEqual([error, open], [null, [addresses[1]]])
  })
})

test('an allow list accepts names, addresses and networks, and refuses other texts', () => {
  const allow = new AllowList(['Hooks.internal', '10.1.2.3', '192.168.7.0/24', 'fd00::/8'])
  assert.ok(allow.allowsName('hooks.INTERNAL'))
  for (const address of ['10.1.2.3', '192.168.7.9', 'fd12::1']) assert.ok(allow.allowsAddress(address), address)
  for (const address of ['10.1.2.4', '192.168.8.1', 'fe80::1']) assert.ok(!allow.allowsAddress(address), address)
  for (const entry of ['', '10.0.0.0/33', '10.0.0.0/x', 'a b', '1.2.3.4/8/8', 7 as never]) {
    assert.throws(() => new AllowList([entry]), { code: 'INVALID_OPTION' }, String(entry))
  }
})

function rules({
  allow = [],
  ...rest
}: {
  allow?: string[]
  resolve?: NonNullable<ConnectRules['resolve']>
}): ConnectRules {
  return { allowPrivate: false, allow: new AllowList(allow), ...rest }
}

function callTo(url: string) {
  return { url: new URL(url), body: '{}', headers: {}, ownHeaders: {}, signal: AbortSignal.timeout(5_000) }
}

async function listening() {
  const calls: string[] = []
  const server = createServer((request, response) => {
    calls.push(String(request.url))
    response.end('ok')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return { port, calls, [Symbol.asyncDispose]: async () => void server.close() }
}
