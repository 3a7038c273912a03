// The runner: random steps against store and model. The seed is printed, and replays the run.
//
//   HOLDFAST_MODEL_SEED=1 HOLDFAST_MODEL_PATH=7 npm test -- test/model/sqlite.test.ts    repeats run 7 of seed 1
//   HOLDFAST_MODEL_RUNS=10000 npm test -- test/model/sqlite.test.ts                      makes more runs
//
// Steps are plain data in an array. The alternative is `fc.commands`, but its replay needs a log of what ran besides seed and
// path.

import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import fc from 'fast-check'
import type { Store } from '../../src/store/store.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { runs as drawnRuns, runsWithoutFlows } from './draw.ts'
import { finish } from './finish.ts'
import { shrink } from './shrink.ts'
import type { Step } from './steps.ts'
import { stories } from './stories.ts'
import { Disagreement, World } from './world.ts'

/** Opens a new, empty store with this clock. */
export type OpenStore = (clock: VirtualClock) => Promise<Store>

export interface RunOptions {
  readonly runs: number
  readonly seed: number
  /** Makes only this run of the seed. */
  readonly path?: string
  /** Whether to look for the smallest list of steps. Default: true. */
  readonly shrinks?: boolean
  /** Whether runs may have moves of flows. Default: true. */
  readonly hasFlows?: boolean
}

export interface Finding {
  readonly seed: number
  readonly path: string
  /** The steps that show the difference. */
  readonly steps: readonly Step[]
  readonly difference: string
  readonly trace: readonly string[]
}

const compareEvery = 5
/** A slow store must not use up the time of the test before the finding is printed. */
const shrinkMaxMs = 60_000

/** Prints the seed. Fails with everything that a replay needs. */
export async function runModel(
  t: TestContext,
  open: OpenStore,
  { runs, hasFlows = true }: Pick<RunOptions, 'runs' | 'hasFlows'>,
): Promise<void> {
  const { HOLDFAST_MODEL_SEED, HOLDFAST_MODEL_PATH, HOLDFAST_MODEL_RUNS } = process.env
  const seed = Number(HOLDFAST_MODEL_SEED ?? Date.now() % 0x7fffffff)
  const path = HOLDFAST_MODEL_PATH ? { path: HOLDFAST_MODEL_PATH } : {}
  const wanted = Number(HOLDFAST_MODEL_RUNS ?? runs)
  t.diagnostic(`${wanted} runs, HOLDFAST_MODEL_SEED=${seed}`)
  const finding = await findDisagreement(open, { runs: wanted, seed, hasFlows, ...path })
  if (finding) assert.fail(report(finding))
}

/** Runs every story against store and model. */
export async function runStories(t: TestContext, open: OpenStore): Promise<void> {
  for (const [title, story] of Object.entries(stories)) {
    await t.test(title, async () => {
      const end = await runSteps(open, story)
      if (end) assert.fail(`${end.message}\n${end.trace.slice(-tailMax).join('\n')}`)
    })
  }
}

const tailMax = 30

/** The first disagreement, shrunk. Null: all runs agree. */
export async function findDisagreement(
  open: OpenStore,
  { runs, shrinks = true, hasFlows = true, ...replay }: RunOptions,
): Promise<Finding | null> {
  let first: Disagreement | null = null
  const property = fc.asyncProperty(hasFlows ? drawnRuns : runsWithoutFlows, async (drawn) => {
    first ??= await runSteps(open, drawn)
    return first === null
  })
  const { failed, counterexample, counterexamplePath } = await fc.check(property, {
    numRuns: runs,
    endOnFailure: true,
    ...replay,
  })
  if (!failed) return null
  const drawn = counterexample?.[0] ?? []
  const until = performance.now() + shrinkMaxMs
  const fails = async (fewer: readonly Step[]) => performance.now() < until && (await runSteps(open, fewer)) !== null
  const fewest = shrinks ? await shrink(drawn, fails) : drawn
  // Racing calls may interleave differently each time. Then only the first disagreement is known.
  const end = (await runSteps(open, fewest)) ?? (first as Disagreement | null)
  assert.ok(end, 'steps that failed before fail again, or the first disagreement is known')
  const { message: difference, trace } = end
  return { seed: replay.seed, path: counterexamplePath ?? '', steps: fewest, difference, trace }
}

/** One run: a fresh store, the steps, the checks at the end. Null: store and model agree. */
export async function runSteps(open: OpenStore, drawn: readonly Step[]): Promise<Disagreement | null> {
  return inWorld(open, async (world, store) => {
    if (drawn.length % 2 === 0) await world.watch() // a watched store must behave like an unwatched one
    for (const [i, step] of drawn.entries()) {
      await world.make(step)
      if (i % compareEvery === compareEvery - 1) await world.compare()
    }
    await finish(world, store)
  })
}

/** The kinds of answers in a run. Only the steps are made: comparing and finishing would add none. */
export async function kindsMet(open: OpenStore, drawn: readonly Step[]): Promise<ReadonlySet<string>> {
  const kinds = new Set<string>()
  const end = await inWorld(open, async (world) => {
    for (const step of drawn) await world.make(step)
    for (const kind of world.kinds) kinds.add(kind)
  })
  if (end) throw end
  return kinds
}

async function inWorld(
  open: OpenStore,
  work: (world: World, store: Store) => Promise<void>,
): Promise<Disagreement | null> {
  const clock = new VirtualClock()
  const store = await open(clock)
  const world = new World(store, clock)
  try {
    await work(world, store)
    return null
  } catch (error) {
    if (error instanceof Disagreement) return error
    return new Disagreement(error instanceof Error ? String(error.stack) : String(error), world.trace)
  } finally {
    await store.close()
  }
}

function report({ seed, path, steps: made, difference, trace }: Finding): string {
  return [
    `Store and model disagree after ${made.length} steps. Replay with`,
    `  HOLDFAST_MODEL_SEED=${seed} HOLDFAST_MODEL_PATH=${path}`,
    difference,
    'What was asked and answered:',
    ...trace.map((line) => `  ${line}`),
  ].join('\n')
}
