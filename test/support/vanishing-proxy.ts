// A way to the server on which hosts vanish without a word: nothing arrives any more in either direction, and nobody says that
// a connection has ended.
//
//   await using proxy = await vanishingProxy(url)
//   proxy.vanish()     // whatever is connected, and whoever connects from now on, hears nothing
//   proxy.comeBack()   // whoever connects from now on gets through; what was connected before stays silent
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export interface VanishingProxy extends AsyncDisposable {
  readonly url: string
  vanish(): void
  comeBack(): void
}

export async function vanishingProxy(serverUrl: string): Promise<VanishingProxy> {
  const target = new URL(serverUrl)
  const sockets = new Set<Socket>()
  let generation = 0
  let isGone = false
  const proxy = createServer((client) => {
    sockets.add(client)
    client.on('error', () => {}).on('close', () => sockets.delete(client))
    if (isGone) return void client.resume()
    const born = generation
    const server = connect(Number(target.port), target.hostname)
    sockets.add(server)
    server.on('error', () => {})
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      from.on('data', (chunk) => born === generation && to.write(chunk))
      from.on('close', () => born === generation && to.destroy())
    }
  })
  await once(proxy.listen(0, '127.0.0.1'), 'listening')
  const url = new URL(serverUrl)
  url.port = String((proxy.address() as AddressInfo).port)
  return {
    url: url.href,
    vanish() {
      generation += 1
      isGone = true
    },
    comeBack() {
      isGone = false
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => proxy.close(resolve))
    },
  }
}
