// The store's own thread: all calls that have arrived when it reads its port are one group.

import { MessagePort, receiveMessageOnPort } from 'node:worker_threads'
import { HoldfastError, refuse } from '../../../errors.ts'
import { sharedClock, systemClock } from '../../../runtime/clock.ts'
import { StopFlag } from '../../../runtime/stop-flag.ts'
import { type Call, Engine } from '../engine.ts'
import { ForeignCommits } from '../wake.ts'
import type { FromThread, ThreadData, ToThread } from './port.ts'
import { packAnswers, unpackItems } from './wire.ts'

/** Opens the file, sends whether that succeeded, and answers calls until `close` arrives. Then it closes the port too. */
export function serve(port: MessagePort, { file, clock, stop }: ThreadData): void {
  try {
    answer(port, new Engine(file, clock ? sharedClock(clock) : systemClock, new StopFlag(stop)))
  } catch (error) {
    const { code, message, facts } =
      error instanceof HoldfastError ? error : new HoldfastError('STORE_UNAVAILABLE', String(error))
    port.postMessage({ failed: refuse(code, message, facts) } satisfies FromThread)
    end(port)
  }
}

function answer(port: MessagePort, engine: Engine): void {
  const send = (message: FromThread) => port.postMessage(message)
  const foreign = new ForeignCommits(engine.db, (notices) => send({ replies: [], notices }))
  onGroup(port, (messages) => {
    const calls: Call[] = []
    let isClosing = false
    for (const message of messages) {
      if (message === 'close') isClosing = true
      else calls.push({ no: message.no, verb: message.verb, items: unpackItems(message.verb, message.wire) })
    }
    if (calls.length > 0) {
      engine.run(calls, (replies, notices) => {
        send({ replies: replies.map(({ no, verb, answers }) => ({ no, wire: packAnswers(verb, answers) })), notices })
      })
    }
    if (!isClosing) return
    foreign.close()
    engine.close()
    end(port)
  })
  send({ opened: true })
}

/**
 * Calls with all messages that have arrived. Deno's `parentPort` is no `MessagePort`, and its messages cannot be read ahead.
 * There, those that arrive in one turn of the event loop are a group.
 */
function onGroup(port: MessagePort, call: (messages: readonly ToThread[]) => void): void {
  if (port instanceof MessagePort) {
    port.on('message', (first: ToThread) => {
      const messages: ToThread[] = []
      for (let message: ToThread | undefined = first; message; message = receiveMessageOnPort(port)?.message)
        messages.push(message)
      call(messages)
    })
    return
  }
  let arrived: ToThread[] = []
  const flush = () => {
    const messages = arrived
    arrived = []
    call(messages)
  }
  ;(port as NodeJS.EventEmitter).on('message', (message: ToThread) => {
    arrived.push(message)
    if (arrived.length === 1) setImmediate(flush)
  })
}

/** Without its port, the thread has nothing to wait for. Deno's `parentPort` cannot be closed. */
function end(port: MessagePort): void {
  if (port instanceof MessagePort) port.close()
  else process.exit()
}
