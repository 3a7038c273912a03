// The runner: random steps against store and model, under a seed that is told and that replays. Steps are plain data in
// an array rather than `fc.commands`, whose shrinking depends on what ran before, so that seed and path alone say which
// steps were made.
//
//   HOLDFAST_MODEL_SEED=1 HOLDFAST_MODEL_PATH=7:0:3 npm test -- test/model/sqlite.test.ts    replays one run
//   HOLDFAST_MODEL_RUNS=10000 npm test -- test/model/sqlite.test.ts                          looks longer

import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import fc from 'fast-check'
import type { Store } from '../../src/store/store.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { finish } from './finish.ts'
import { type Step, steps } from './steps.ts'
import { Disagreement, World } from './world.ts'

/** Opens a store of its own, empty, on this clock. */
export type OpenStore = (clock: VirtualClock) => Promise<Store>

export interface RunOptions {
  readonly runs: number
  readonly seed?: number
  readonly path?: string
  /** Whether to look for a smaller counterexample; on unless said otherwise. */
  readonly shrink?: boolean
}

export interface Finding {
  readonly seed: number
  /** Which run, and how it was shrunk: replays with the seed. */
  readonly path: string
  readonly steps: readonly Step[]
  readonly difference: string
  readonly trace: readonly string[]
}

const compareEvery = 5

/** Tells the seed; fails with everything needed to replay. */
export async function runModel(t: TestContext, open: OpenStore, { runs }: { readonly runs: number }): Promise<void> {
  const { HOLDFAST_MODEL_SEED, HOLDFAST_MODEL_PATH, HOLDFAST_MODEL_RUNS } = process.env
  const seed = Number(HOLDFAST_MODEL_SEED ?? Date.now() % 0x7fffffff)
  const path = HOLDFAST_MODEL_PATH ? { path: HOLDFAST_MODEL_PATH } : {}
  const wanted = Number(HOLDFAST_MODEL_RUNS ?? runs)
  t.diagnostic(`${wanted} runs, HOLDFAST_MODEL_SEED=${seed}`)
  const finding = await findDisagreement(open, { runs: wanted, seed, ...path })
  if (finding) assert.fail(report(finding))
}

/** The first disagreement, shrunk; null where all runs agree. */
export async function findDisagreement(open: OpenStore, options: RunOptions): Promise<Finding | null> {
  const { runs, seed, path, shrink = true } = options
  const property = fc.asyncProperty(steps, (drawn) => live(open, drawn))
  const details = await fc.check(property, {
    numRuns: runs,
    endOnFailure: !shrink,
    ...(seed !== undefined && { seed }),
    ...(path !== undefined && { path }),
  })
  if (!details.failed) return null
  const error = details.errorInstance
  return {
    seed: details.seed,
    path: details.counterexamplePath ?? '',
    steps: details.counterexample?.[0] ?? [],
    difference: error instanceof Error && !(error instanceof Disagreement) ? String(error.stack) : String(error),
    trace: error instanceof Disagreement ? error.trace : [],
  }
}

/** One run: a fresh store, the steps, the end. */
export async function live(open: OpenStore, drawn: readonly Step[]): Promise<void> {
  const clock = new VirtualClock()
  const store = await open(clock)
  try {
    const world = new World(store, clock)
    for (const [i, step] of drawn.entries()) {
      await world.make(step)
      if (i % compareEvery === compareEvery - 1) await world.compare()
    }
    await finish(world, store)
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
