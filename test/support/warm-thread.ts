// Threads of the SQLite store that serve one store after another, each on its own port. Starting one takes 120 ms of processor
// time, most of it for loading the engine, and a suite opens a thousand stores. Tests about the thread itself (how it starts,
// that it ends with its store, that it does not keep a process alive) start it as the store does.
import { EventEmitter } from 'node:events'
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import type { Thread, ThreadData, ToThread } from '../../src/store/sqlite/thread/port.ts'

export interface Assignment {
  readonly port: MessagePort
  readonly data: ThreadData
}

const idle = new Set<Worker>()

export function warmThread(data: ThreadData): Thread {
  const [worker = started()] = idle
  idle.delete(worker)
  const { port1, port2 } = new MessageChannel()
  worker.postMessage({ port: port2, data } satisfies Assignment, [port2])
  const lent = new LentThread(port1)
  const onError = (error: unknown) => lent.emit('error', error)
  worker.once('error', onError)
  port1.once('close', () => {
    worker.off('error', onError)
    idle.add(worker)
    lent.emit('exit')
  })
  return lent
}

function started(): Worker {
  const worker = new Worker(new URL('./warm-thread-program.ts', import.meta.url), { name: 'holdfast-sqlite' })
  worker.once('exit', () => idle.delete(worker))
  worker.unref() // only a store that it serves keeps the process alive
  return worker
}

class LentThread extends EventEmitter implements Thread {
  readonly #port: MessagePort

  constructor(port: MessagePort) {
    super()
    this.#port = port
    port.on('message', (message) => this.emit('message', message))
  }

  postMessage(message: ToThread): void {
    this.#port.postMessage(message)
  }

  ref(): void {
    this.#port.ref()
  }

  unref(): void {
    this.#port.unref()
  }
}
