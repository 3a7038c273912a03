import type { EffectSet } from '../job/record.ts'
import type { Effects } from '../queue/effects.ts'

interface PermanentOptions extends ErrorOptions {
  readonly effects?: Effects
  /** Effects that were prepared elsewhere. */
  readonly prepared?: EffectSet | null
}

/** Known by every copy of this package: a bundled handler module has a copy of its own. */
const mark = Symbol.for('holdfast.Permanent')

/** An error that no later attempt can avoid: the job is dead at once, whatever attempts it has left, with these effects. */
export class Permanent extends Error {
  readonly effects: Effects | undefined
  readonly prepared: EffectSet | null

  constructor(message: string, options: PermanentOptions = {}) {
    super(message, options)
    this.name = 'Permanent'
    this.effects = options.effects
    this.prepared = options.prepared ?? null
    Object.defineProperty(this, mark, { value: true })
  }
}

/** Any value can be thrown, also a proxy that throws when it is inspected. */
export function isPermanent(error: unknown): error is Permanent {
  try {
    return error instanceof Error && Reflect.has(error, mark)
  } catch {
    return false
  }
}
