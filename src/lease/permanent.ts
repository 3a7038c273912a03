import { isError } from '../job/error.ts'
import type { EffectSet } from '../job/record.ts'
import type { Effects, FollowUp } from '../queue/effects.ts'

interface PermanentOptions<Item extends FollowUp> extends ErrorOptions {
  readonly effects?: Effects<Item>
}

/** Known by every copy of this package: a bundled handler module has a copy of its own. */
const mark = Symbol.for('holdfast.Permanent')

/** An error that no later attempt can avoid: the job is dead at once, whatever attempts it has left, with these effects. */
export class Permanent<Item extends FollowUp = FollowUp> extends Error {
  readonly effects: Effects<Item> | undefined

  constructor(message: string, options: PermanentOptions<Item> = {}) {
    super(message, options)
    this.name = 'Permanent'
    this.effects = options.effects
    Object.defineProperty(this, mark, { value: true })
  }
}

/** Effects that were prepared in a thread. They are kept apart from the error, so that no handler can set them. */
const prepared = new WeakMap<Permanent, EffectSet>()

export function permanentWith(message: string, effects: EffectSet | null): Permanent {
  const error = new Permanent(message)
  if (effects) prepared.set(error, effects)
  return error
}

export function preparedEffects(error: Permanent): EffectSet | null {
  return prepared.get(error) ?? null
}

/** Marks an error of ours that no later attempt can avoid. */
export function markPermanent<E extends Error>(error: E): E {
  return Object.defineProperty(error, mark, { value: true })
}

/** Any value can be thrown, also a proxy that throws when it is inspected. */
export function isPermanent(error: unknown): error is Permanent {
  try {
    return isError(error) && Reflect.has(error, mark)
  } catch {
    return false
  }
}
