// A round without faults: one life in this process, on a store in memory that may be broken on purpose, under a
// clock of its own. So the judge can be judged.

import { Holdfast } from '../../src/holdfast.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { Store } from '../../src/store/store.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { machineMs } from '../sqlite/process.ts'
import { drain, dropAnchor } from './drain.ts'
import { Journal, type Note, parseJournal } from './journal.ts'
import { peace } from './judge/evidence.ts'
import type { Findings } from './judge.ts'
import { logInMemory } from './log.ts'
import { noTables, observe } from './observe.ts'
import { Random } from './random.ts'
import { Workload } from './workload.ts'

export type Break = (store: Store) => Partial<Store>

export interface RehearsalOptions {
  readonly seed: number
  readonly rounds: number
  /** Whether it is about what has limits, or all else. */
  readonly about?: 'limits' | 'all else'
  readonly fault?: Break
}

export async function rehearse({
  seed,
  rounds,
  about = 'all else',
  fault = () => ({}),
}: RehearsalOptions): Promise<Findings> {
  const clock = new VirtualClock()
  await using holdfast = new Holdfast(broken(await sqlite({ path: ':memory:' })({ clock }), fault))
  const lines: string[] = []
  const now = () => machineMs() + clock.now() // both go on
  const journal = new Journal(
    logInMemory((line) => lines.push(line)),
    { mayBeDown: false, now },
  )
  const world = { holdfast, journal, random: new Random(seed), now: () => clock.now(), waitMs: 0 }
  await dropAnchor(world)
  const live = about === 'limits' ? Workload.limited : Workload.whole
  await live({ ...world, life: 'life' }, { mayBeDown: false, rounds, pauseMs: 0 }).over
  const found = await observe(holdfast, noTables)
  const pass = async (ms: number) => clock.advance(ms)
  await drain({ ...world, life: 'drain' }, { pass, maxMs: 10_000 })
  const notes: Note[] = parseJournal(lines.join(''))
  const left = await observe(holdfast, noTables)
  return { notes, found, left, ordeal: peace, told: null, received: null }
}

/** The same store, but for what the fault does instead. */
function broken(store: Store, fault: Break): Store {
  // Rows in a table of one's own cannot be looked at in memory: there the other effects must do.
  const instead = { capabilities: { ...store.capabilities, sqlEffects: false }, ...fault(store) }
  return new Proxy(store, {
    get: (target, name) => {
      const value = Reflect.get(instead, name) ?? Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}
