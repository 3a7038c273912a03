/** Whether it is awaited. A promise of another realm, or of a library, is no instance of this realm's `Promise`. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  return typeof (value as { then?: unknown }).then === 'function'
}
