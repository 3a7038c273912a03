// What `holdfast.on` and `onAll` take. A name that no event has would never be called, and its mistake would never show.

import { HoldfastError } from '../errors.ts'
import type { EventName } from '../events.ts'
import { show } from '../runtime/duration.ts'
import { wording } from './log-sentences.ts'

export function checkEventName<Name extends EventName>(name: Name): Name {
  if (typeof name === 'string' && Object.hasOwn(wording, name)) return name
  const names = Object.keys(wording).join(', ')
  const what = typeof name === 'string' ? `There is no event ${show(name)}` : `An event has a name; got ${show(name)}`
  throw invalid('name', `${what}. These are: ${names}. onAll listens to all of them.`)
}

export function checkListener<Listener>(listener: Listener): Listener {
  if (typeof listener === 'function') return listener
  throw invalid('listener', `A listener is a function that takes the event; got ${show(listener)}.`)
}

function invalid(option: string, message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option })
}
