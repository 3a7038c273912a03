import type { Effects } from './effects.ts'

/** An error that no later attempt can mend: the job is dead at once, whatever attempts it has left, with these effects. */
export class Permanent extends Error {
  readonly effects: Effects | undefined

  constructor(message: string, options: ErrorOptions & { readonly effects?: Effects } = {}) {
    super(message, options)
    this.name = 'Permanent'
    this.effects = options.effects
  }
}

/** Anything can be thrown, also what will not be looked at. */
export function isPermanent(error: unknown): error is Permanent {
  try {
    return error instanceof Permanent
  } catch {
    return false
  }
}
