// The store's own thread: all calls that have arrived when it reads its port are one group.

import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads'
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
    port.close()
  }
}

function answer(port: MessagePort, engine: Engine): void {
  const send = (message: FromThread) => port.postMessage(message)
  const foreign = new ForeignCommits(engine.db, (notices) => send({ replies: [], notices }))
  port.on('message', (first: ToThread) => {
    const calls: Call[] = []
    let isClosing = false
    for (let message: ToThread | undefined = first; message; message = receiveMessageOnPort(port)?.message) {
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
    port.close()
  })
  send({ opened: true })
}
