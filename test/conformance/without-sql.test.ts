// The refusals of a store that can neither enqueue in the caller's transaction nor run SQL. Every real store can do at least one
// of them, so this test switches both capabilities off.
import { Holdfast } from '../../src/holdfast.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { Store } from '../../src/store/store.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { callerTransactionTests } from './caller-transaction.ts'
import { sqlEffectTests } from './sql-effects.ts'
import { withoutClose } from './without-close.ts'
import { type StoreUnderTest, worldOf } from './world.ts'

const store: StoreUnderTest = {
  name: 'a store without SQL',
  async open() {
    const clock = new VirtualClock()
    const whole = await sqlite({ path: ':memory:' })({ clock })
    const store = async () => withoutSql(withoutClose(whole))
    return { clock, client: async () => new Holdfast(await store()), store, close: () => whole.close() }
  },
}

for (const topic of [callerTransactionTests, sqlEffectTests]) topic(worldOf(store), store)

function withoutSql(store: Store): Store {
  const capabilities = { ...store.capabilities, callerTransaction: false, sqlEffects: false }
  return new Proxy(store, {
    get: (target, name) => (name === 'capabilities' ? capabilities : Reflect.get(target, name)),
  })
}
