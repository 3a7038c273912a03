import { Holdfast } from '../../src/holdfast.ts'
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
    return { clock, client: async () => new Holdfast(withoutClose(store)), close: () => store.close() }
  },
})
