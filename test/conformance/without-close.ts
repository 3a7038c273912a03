import type { Store } from '../../src/store/store.ts'

/** One store for several clients of a process: closing one client leaves it open for the others. */
export function withoutClose(store: Store): Store {
  return new Proxy(store, {
    get(target, name) {
      if (name === 'close') return async () => {}
      const part: unknown = Reflect.get(target, name)
      return typeof part === 'function' ? part.bind(target) : part
    },
  })
}
