// The SQLite store, in memory (in this thread) and in a file (in a thread of its own), against the reference model.
import { join } from 'node:path'
import test from 'node:test'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { runModel, runStories } from './run.ts'

const inMemory = (clock: VirtualClock) => sqlite({ path: ':memory:' })({ clock })

test('in memory, the store agrees with the model in random runs', (t) => runModel(t, inMemory, { runs: 150 }))

test('the store agrees with the model in every story', (t) => runStories(t, inMemory))

test('in a file, the store agrees with the model in random runs', async (t) => {
  await using scratch = await scratchDirectory()
  let files = 0
  await runModel(t, (clock) => sqlite({ path: join(scratch.path, `${files++}.db`) })({ clock }), { runs: 20 })
})
