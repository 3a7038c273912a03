// A worker of flows in a process of its own, which kills itself before or after a call to its store. On its stdout it reports
// what its steps did, and every event. A line on its stdin lets the step that is held end.
//   executes.ts <url> <name> <options as JSON>
import { open } from '../../../src/open.ts'
import { postgresAddress } from '../../../src/store/postgres/connection/address.ts'
import { postgres } from '../../../src/store/postgres/index.ts'
import { sqlite } from '../../../src/store/sqlite/index.ts'
import type { Store } from '../../../src/store/store.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'
import { crashFlow, scoring } from '../crash-flows.ts'

export interface ExecutesOptions {
  readonly leaseMs: number
  /** Dies at the nth call of this verb. `after`: it is committed, and its answer is lost. */
  readonly dies?: { readonly at: 'checkpoint' | 'settle'; readonly call: number; readonly when: 'before' | 'after' }
  /** Whether it also serves the queue of the children. */
  readonly scores?: true
  /** The step of the task `hold` waits for a line of the test. */
  readonly holds?: true
}

const [url = '', name = '', text = ''] = process.argv.slice(2)
const { leaseMs, dies, scores, holds }: ExecutesOptions = JSON.parse(text)
const go = Promise.withResolvers<void>()

const opener = url.startsWith('sqlite:')
  ? sqlite({ path: url.slice('sqlite:'.length) })
  : postgres(postgresAddress(url))
const holdfast = await open(async (options) => mortal(await opener(options)), { logger: false })
holdfast.onAll((event) => say({ event }))
const flow = crashFlow(
  (did, key) => say({ did, key }),
  () => (holds ? go.promise : Promise.resolve()),
)
const options = { name, lease: leaseMs, concurrency: 5 } as const
if (scores) holdfast.work([[flow], [scoring, ({ payload }) => payload * 2]], options)
else holdfast.work(flow, options)
await hear()
go.resolve()

/** The same store, which kills this process at one of its calls. */
function mortal(store: Store): Store {
  if (!dies) return store
  let calls = 0
  const die = () => process.kill(process.pid, 'SIGKILL')
  return new Proxy(store, {
    get(target, property) {
      const value = Reflect.get(target, property, target)
      if (typeof value !== 'function') return value
      if (property !== dies.at) return value.bind(target)
      return async (...args: unknown[]) => {
        calls += 1
        if (calls === dies.call && dies.when === 'before') die()
        const answers = await Promise.all(await value.apply(target, args))
        if (calls === dies.call) die()
        return answers
      }
    },
  })
}
