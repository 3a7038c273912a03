import { Holdfast } from '../../src/holdfast.ts'
import { ReadOnlyStore } from '../../src/store/read-only.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { conformance } from './index.ts'
import { withoutClose } from './without-close.ts'

conformance({
  name: 'sqlite memory',
  runsSql: true,
  async open() {
    const clock = new VirtualClock()
    const store = await sqlite({ path: ':memory:' })({ clock })
    const client = async ({ readOnly = false }) => {
      const shared = withoutClose(store)
      return new Holdfast(readOnly ? new ReadOnlyStore(shared) : shared)
    }
    return {
      clock,
      client: (options = {}) => client(options),
      store: async () => withoutClose(store),
      close: () => store.close(),
    }
  },
})
