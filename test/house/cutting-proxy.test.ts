// The cutting proxy of the tests, in front of a server that sends what a test wants.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import test from 'node:test'
import { cuttingProxy } from '../support/cutting-proxy.ts'

const completed = message('C', 'SELECT 1\0')
const ready = message('Z', 'I')
const notification = message('A', '\0\0\0\x01channel\0text\0')

for (const [what, answer] of Object.entries({
  'an answer': [completed, ready],
  'an answer that a notification follows at once': [completed, ready, notification],
  'an answer after a notification': [notification, completed, ready],
}))
  test(`${what} is lost, and the proxy leaves the server after it`, async () => {
    const left = Promise.withResolvers<void>()
    await using server = createServer((socket) => {
      socket.on('data', () => socket.write(Buffer.concat(answer)))
      socket.on('end', () => left.resolve())
    })
    await once(server.listen(0, '127.0.0.1'), 'listening')
    await using proxy = await cuttingProxy(`postgres://127.0.0.1:${(server.address() as AddressInfo).port}/any`)
    const cut = proxy.cut('settle', 'after')
    const client = connect(Number(new URL(proxy.url).port), '127.0.0.1')
    const received: Buffer[] = []
    client.on('data', (chunk) => received.push(chunk))
    client.write('settle')
    await Promise.all([cut, left.promise, once(client, 'close')])
    assert.deepEqual(received, [])
  })

function message(type: string, text: string): Buffer {
  const body = Buffer.from(text, 'latin1')
  const head = Buffer.alloc(5)
  head.write(type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}
