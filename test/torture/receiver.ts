// The receiver of webhooks: records every tag it gets. Some calls it refuses, and of some it closes the connection.

import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Random } from './random.ts'

export interface Receiver extends AsyncDisposable {
  readonly url: string
  /** One for each call that was accepted. */
  readonly tags: readonly string[]
}

export async function startReceiver(random: Random): Promise<Receiver> {
  const tags: string[] = []
  const server = createServer(async (request, response) => {
    const body = Buffer.concat(await Array.fromAsync(request).catch(() => []))
    const reaction = random.weighted({ accept: 8, refuse: 1, disconnect: 1 })
    if (reaction === 'refuse') return void response.writeHead(503).end()
    if (reaction === 'disconnect') return void request.socket.destroy()
    tags.push((JSON.parse(body.toString()) as { readonly tag: string }).tag)
    response.writeHead(204).end()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    tags,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
