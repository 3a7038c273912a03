/** Resolves as the promise does. Rejects if this time passes or the signal aborts first. The process stays alive meanwhile. */
export async function within<T>(ms: number, promise: Promise<T>, what: string, signal?: AbortSignal): Promise<T> {
  const { promise: given, resolve, reject } = Promise.withResolvers<T>()
  const timer = setTimeout(() => reject(new Error(`${what} took longer than ${ms} ms.`)), ms)
  const abort = () => reject(signal?.reason)
  signal?.addEventListener('abort', abort)
  if (signal?.aborted) abort()
  promise.then(resolve, reject)
  try {
    return await given
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', abort)
  }
}
