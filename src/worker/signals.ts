// Ends a program as its operator asks. The first signal closes: running jobs may finish within the grace period. A second one
// hurries: they are given back at once. When all is closed the signal is raised again, now unheard by us, so that the process
// ends by it and its parent reads the right status. Whoever else listens to that signal hears it twice.

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

/** Answers how to stop listening. */
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
      closed.catch(() => undefined) // the first hears of it
    else closed.then(end, end)
    isClosing = true
  }
  const stopListening = () => {
    for (const signal of signals) process.off(signal, onSignal)
  }
  for (const signal of signals) process.on(signal, onSignal)
  return stopListening
}

const unheard = ['SIGKILL', 'SIGSTOP']

function checkSignals(signals: unknown): readonly NodeJS.Signals[] {
  const isSignal = (signal: unknown) =>
    Object.hasOwn(constants.signals, String(signal)) && !unheard.includes(String(signal))
  if (Array.isArray(signals) && signals.length > 0 && signals.every(isSignal)) return [...new Set(signals)]
  const message = `signals are names of signals that a process can hear, such as 'SIGTERM'; got ${show(signals)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'signals' })
}
