// A round without faults, to test the judge: one workload in this process, on a store in memory that may be broken on purpose,
// under a virtual clock.

import { Holdfast } from '../../src/holdfast.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { Store } from '../../src/store/store.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { machineMs } from '../sqlite/process.ts'
import { drain, enqueueReservedJob } from './drain.ts'
import { Journal, type Note, parseJournal } from './journal.ts'
import { undisturbed } from './judge/evidence.ts'
import type { Findings } from './judge.ts'
import { logInMemory } from './log.ts'
import { noTables, observe } from './observe.ts'
import { Random } from './random.ts'
import { Workload } from './workload.ts'

export type Break = (store: Store) => Partial<Store>

export interface RehearsalOptions {
  readonly seed: number
  readonly rounds: number
  /** Whether the workload uses queues and batches with limits, or everything else. */
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
  const now = () => machineMs() + clock.now() // both advance
  const journal = new Journal(
    logInMemory((line) => lines.push(line)),
    { mayBeDown: false, now },
  )
  const world = { holdfast, journal, random: new Random(seed), now: () => clock.now(), waitMs: 0 }
  await enqueueReservedJob(world)
  const start = about === 'limits' ? Workload.limited : Workload.whole
  await start({ ...world, processName: 'rehearsal' }, { mayBeDown: false, rounds, pauseMs: 0 }).over
  const found = await observe(holdfast, noTables)
  const pass = async (ms: number) => clock.advance(ms)
  await drain({ ...world, processName: 'drain' }, { pass, maxMs: 10_000 })
  const notes: Note[] = parseJournal(lines.join(''))
  const left = await observe(holdfast, noTables)
  return { notes, found, left, conditions: undisturbed, watchLog: null, received: null }
}

/** The store, with the methods that the fault replaces. */
function broken(store: Store, fault: Break): Store {
  // A table in memory cannot be read from outside, so there are no SQL effects here; the other effects are judged.
  const instead = { capabilities: { ...store.capabilities, sqlEffects: false }, ...fault(store) }
  return new Proxy(store, {
    get: (target, name) => {
      const value = Reflect.get(instead, name) ?? Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}
