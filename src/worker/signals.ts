// Ends a program on SIGTERM or SIGINT. On the first signal the client closes: running jobs may finish within the grace period.
// On a second one they are released at once. When the client is closed, this code stops listening and raises the signal again,
// so that the process ends by it and its parent reads the right exit status. Another listener of that signal is called twice.

import { constants } from 'node:os'
import { HoldfastError } from '../errors.ts'
import { defaults } from '../job/bounds.ts'
import { checkOptions } from '../job/names.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import type { StopOptions } from './worker.ts'

export interface SignalOptions {
  /** How long running jobs may take to finish; 30 s unless given. */
  readonly grace?: Duration
  /** SIGTERM and SIGINT unless given. */
  readonly signals?: readonly NodeJS.Signals[]
}

/** Returns a function that stops listening. */
export function closeOnSignals(
  close: (options: StopOptions) => Promise<void>,
  options: SignalOptions = {},
): () => void {
  checkOptions(options, 'signal options', ['grace', 'signals'])
  const grace = toMs(options.grace ?? defaults.stopGraceMs, 'grace')
  const signals = checkSignals(options.signals ?? ['SIGTERM', 'SIGINT'])
  let isClosing = false
  const onSignal = (signal: NodeJS.Signals) => {
    const closed = close({ grace: isClosing ? 0 : grace })
    const end = () => {
      stopListening()
      process.kill(process.pid, signal)
    }
    if (isClosing)
      closed.catch(() => undefined) // the handler of the first signal gets the same error
    else closed.then(end, end)
    isClosing = true
  }
  const stopListening = () => {
    for (const signal of signals) process.off(signal, onSignal)
  }
  for (const signal of signals) process.on(signal, onSignal)
  return stopListening
}

const uncatchable = ['SIGKILL', 'SIGSTOP']

function checkSignals(signals: unknown): readonly NodeJS.Signals[] {
  const isSignal = (signal: unknown) =>
    Object.hasOwn(constants.signals, String(signal)) && !uncatchable.includes(String(signal))
  if (Array.isArray(signals) && signals.length > 0 && signals.every(isSignal)) return [...new Set(signals)]
  const message = `signals are names of signals that a process can catch, such as 'SIGTERM'; got ${show(signals)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'signals' })
}
