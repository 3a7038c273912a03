// The store's own thread: everything that has arrived by the time it looks is one group.

import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads'
import { sharedClock, systemClock } from '../../clock.ts'
import { HoldfastError, refuse } from '../../errors.ts'
import { type Call, Engine } from './engine.ts'
import type { FromThread, ThreadData, ToThread } from './port.ts'
import { ForeignCommits } from './wake.ts'
import { packAnswers, unpackItems } from './wire.ts'

const { file, clock } = workerData as ThreadData
const port = parentPort as NonNullable<typeof parentPort>
const send = (message: FromThread) => port.postMessage(message)

try {
  serve(new Engine(file, clock ? sharedClock(clock) : systemClock))
} catch (error) {
  const { code, message, facts } =
    error instanceof HoldfastError ? error : new HoldfastError('STORE_UNAVAILABLE', String(error))
  send({ failed: refuse(code, message, facts) })
  port.close()
}

function serve(engine: Engine): void {
  const foreign = new ForeignCommits(engine.db, (news) => send({ replies: [], news }))
  port.on('message', (first: ToThread) => {
    const calls: Call[] = []
    let isClosing = false
    for (let message: ToThread | undefined = first; message; message = receiveMessageOnPort(port)?.message) {
      if (message === 'close') isClosing = true
      else calls.push({ no: message.no, verb: message.verb, items: unpackItems(message.verb, message.wire) })
    }
    if (calls.length > 0) {
      engine.run(calls, (replies, news) => {
        send({ replies: replies.map(({ no, verb, answers }) => ({ no, wire: packAnswers(verb, answers) })), news })
      })
    }
    if (!isClosing) return
    foreign.close()
    engine.close()
    port.close()
  })
  send({ opened: true })
}
