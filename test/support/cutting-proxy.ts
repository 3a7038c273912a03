// A proxy between a client and its PostgreSQL server that cuts the connection on request:
//
//   await using proxy = await cuttingProxy(database.url)
//   const cut = proxy.cut('commit\0', 'after')   // the next commit is applied, and its answer is lost
//   …                                             // calls of the client, through proxy.url
//   await cut
//
// - `before`: the call does not reach the server.
// - `during`: it does, and the connection is cut at once.
// - `after`: the connection is cut when the server has answered, and the answer does not reach the client.
//
// A proxy that stays broken lets no connection through until it is mended.
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

export type Moment = 'before' | 'during' | 'after'

export interface CuttingProxy extends AsyncDisposable {
  readonly url: string
  /** Resolves when the connection was cut. The next call gets through, unless the proxy stays broken. */
  cut(text: string, moment: Moment, how?: { readonly stays?: boolean }): Promise<void>
  mend(): void
  /** Cuts every connection, with all data in transit. */
  drop(): void
  /** Holds all data back for this long, in both directions, and then delivers it. */
  hold(ms: number): Promise<void>
}

interface Order {
  readonly text: string
  readonly moment: Moment
  readonly stays: boolean
  done(): void
}

export async function cuttingProxy(serverUrl: string): Promise<CuttingProxy> {
  const target = new URL(serverUrl)
  const sockets = new Set<Socket>()
  let order: Order | null = null
  let isBroken = false
  let holds = 0

  const proxy = createServer((client) => {
    if (isBroken) {
      client.destroy()
      return
    }
    const server = connect(Number(target.port), target.hostname)
    let cutting: Order | null = null // the current answer is lost
    const cut = ({ stays, done }: Order) => {
      isBroken = stays
      client.destroy()
      server.end() // data that was sent still arrives
      if (stays) for (const socket of sockets) if (socket !== server) socket.destroy()
      done()
    }
    for (const socket of [client, server]) {
      sockets.add(socket)
      if (holds > 0) socket.pause()
      socket.on('error', () => {})
      socket.on('close', () => {
        sockets.delete(socket)
        client.destroy()
        if (socket === server || cutting === null) server.end()
      })
    }
    client.on('data', (chunk) => {
      const ordered = order?.moment !== undefined && chunk.includes(order.text) ? order : null
      if (ordered) order = null
      if (ordered?.moment === 'before') return cut(ordered)
      server.write(chunk)
      if (ordered?.moment === 'during') cut(ordered)
      else if (ordered) cutting = ordered
    })
    server.on('data', (chunk) => {
      if (cutting === null) client.write(chunk)
      else if (isReadyForQuery(chunk)) cut(cutting)
    })
  })
  await once(proxy.listen(0, '127.0.0.1'), 'listening')
  const url = new URL(serverUrl)
  url.port = String((proxy.address() as AddressInfo).port)
  return {
    url: url.href,
    cut(text, moment, { stays = false } = {}) {
      const { promise, resolve } = Promise.withResolvers<void>()
      order = { text, moment, stays, done: resolve }
      return promise
    },
    mend() {
      isBroken = false
    },
    drop() {
      for (const socket of sockets) socket.destroy()
    },
    async hold(ms) {
      holds += 1
      for (const socket of sockets) socket.pause()
      await delay(ms)
      holds -= 1
      if (holds === 0) for (const socket of sockets) socket.resume()
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => proxy.close(resolve))
    },
  }
}

/**
 * The server's final message of a call: it has committed or failed. Another message, such as a notification, may follow at
 * once. A long answer comes in parts, and the last of them ends with this message.
 */
function isReadyForQuery(chunk: Buffer): boolean {
  const ready = 'Z'.charCodeAt(0)
  for (let at = 0, length = 4; at + 5 <= chunk.length && length >= 4; at += 1 + length) {
    if (chunk[at] === ready) return true
    length = chunk.readInt32BE(at + 1)
  }
  return chunk.length >= 6 && chunk.subarray(-6, -1).equals(Buffer.from([ready, 0, 0, 0, 5]))
}
