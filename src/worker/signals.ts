// Ends a program on SIGTERM or SIGINT. On the first signal the client closes: running jobs may finish within the grace period.
// On a second one they are released at once. What happens when the client is closed depends on what else listened to the first
// signal:
//
//   nothing else            the signal is raised again, now without a listener: the process ends by it, as its parent expects
//   other clients of ours   the last of them to be closed does that; until then the signal would shorten the grace of the others
//   other listeners         nothing: they got the signal, and ending the process is up to them. Raised again, it would call them
//                           twice; and if `once` has removed them meanwhile, it would cut off what they still finish
//
// So our listener must see the others before any of them is removed: it is put in front of those that are there.

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

/** On each of our listeners, of every copy of this package: whether its client closes because of a signal. */
const mark = Symbol.for('holdfast.closeOnSignals')

interface OwnListener extends NodeJS.SignalsListener {
  readonly [mark]: { isClosing: boolean }
}

/** Returns a function that stops listening. */
export function closeOnSignals(
  close: (options: StopOptions) => Promise<void>,
  options: SignalOptions = {},
): () => void {
  checkOptions(options, 'signal options', ['grace', 'signals'])
  const grace = toMs(options.grace ?? defaults.stopGraceMs, 'grace')
  const signals = checkSignals(options.signals ?? ['SIGTERM', 'SIGINT'])
  const state = { isClosing: false }
  const listener = (signal: NodeJS.Signals) => {
    const closed = close({ grace: state.isClosing ? 0 : grace })
    if (state.isClosing) {
      closed.catch(() => undefined) // the handler of the first signal gets the same error
      return
    }
    state.isClosing = true
    const isLeftToOthers = process.listeners(signal).some((each) => !isOwn(each))
    const end = () => {
      stopListening()
      if (!isLeftToOthers && !isAnyClosing()) process.kill(process.pid, signal)
    }
    closed.then(end, end)
  }
  const onSignal: OwnListener = Object.assign(listener, { [mark]: state })
  const stopListening = () => {
    for (const signal of signals) process.off(signal, onSignal)
  }
  for (const signal of signals) process.prependListener(signal, onSignal)
  return stopListening
}

function isOwn(listener: unknown): listener is OwnListener {
  return Object.hasOwn(listener as object, mark)
}

/** Clients may listen to different signals, so one may still close because of another signal. */
function isAnyClosing(): boolean {
  const listeners = Object.keys(constants.signals).flatMap((signal) => process.listeners(signal as NodeJS.Signals))
  return listeners.some((each) => isOwn(each) && each[mark].isClosing)
}

const uncatchable = ['SIGKILL', 'SIGSTOP']

function checkSignals(signals: unknown): readonly NodeJS.Signals[] {
  const isSignal = (signal: unknown) =>
    Object.hasOwn(constants.signals, String(signal)) && !uncatchable.includes(String(signal))
  if (Array.isArray(signals) && signals.length > 0 && signals.every(isSignal)) return [...new Set(signals)]
  const message = `signals are names of signals that a process can catch, such as 'SIGTERM'; got ${show(signals)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'signals' })
}
