// An address that leads to one server now and to another later, like an address that follows the primary:
//
//   await using proxy = await switchingProxy(primary.url())
//   proxy.switchTo(standby.url())   // ends the connections to the old one
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export interface SwitchingProxy extends AsyncDisposable {
  readonly url: string
  switchTo(serverUrl: string): void
}

export async function switchingProxy(serverUrl: string): Promise<SwitchingProxy> {
  let target = new URL(serverUrl)
  const sockets = new Set<Socket>()
  const endAll = () => {
    for (const socket of sockets) socket.destroy()
  }
  const proxy = createServer((client) => {
    const server = connect(Number(target.port), target.hostname)
    for (const [from, to] of [
      [client, server],
      [server, client],
    ] as const) {
      sockets.add(from)
      from.on('error', () => {})
      from.on('close', () => {
        sockets.delete(from)
        to.destroy()
      })
      from.pipe(to)
    }
  })
  await once(proxy.listen(0, '127.0.0.1'), 'listening')
  const url = new URL(serverUrl)
  url.port = String((proxy.address() as AddressInfo).port)
  return {
    url: url.href,
    switchTo(otherUrl) {
      target = new URL(otherUrl)
      endAll()
    },
    async [Symbol.asyncDispose]() {
      endAll()
      await new Promise((resolve) => proxy.close(resolve))
    },
  }
}
