/** Resolves when the signal aborts. */
export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
}

/**
 * Resolves as the promise does, or with undefined as soon as the signal aborts. (A race against one promise that lives as long as
 * a worker would keep a reaction for every call.)
 */
export function orAborted<T>(promise: Promise<T> | null, signal: AbortSignal): Promise<T | undefined> {
  if (promise === null) return Promise.resolve(undefined)
  return new Promise((resolve, reject) => {
    const abort = () => resolve(undefined)
    const leave = () => signal.removeEventListener('abort', abort)
    if (signal.aborted) abort()
    else signal.addEventListener('abort', abort, { once: true })
    promise.then(resolve, reject).finally(leave)
  })
}
