// Who is called by webhooks: takes down every tag it is sent, and now and then fails as receivers do.

import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Random } from './random.ts'

export interface Receiver extends AsyncDisposable {
  readonly url: string
  /** As often as they were received and answered for. */
  readonly tags: readonly string[]
}

export async function startReceiver(random: Random): Promise<Receiver> {
  const tags: string[] = []
  const server = createServer(async (request, response) => {
    const body = Buffer.concat(await Array.fromAsync(request).catch(() => []))
    const fate = random.weighted({ taken: 8, refused: 1, hung: 1 })
    if (fate === 'refused') return void response.writeHead(503).end()
    if (fate === 'hung') return void request.socket.destroy()
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
