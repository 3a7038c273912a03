// A proxy on whose path hosts vanish silently: no data arrives in either direction any more, and no end of a connection is
// reported.
//
//   await using proxy = await vanishingProxy(url)
//   proxy.vanish()     // existing and new connections receive nothing
//   proxy.comeBack()   // new connections get through; those from before stay silent
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
