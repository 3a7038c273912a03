// Every verb with every kind of bad argument, drawn at random. For every call:
// - It succeeds, or is refused with a HoldfastError that has a readable sentence.
// - Every store refuses it with the same code. A second store, in memory, gets the same call.
// - It ends.
// - It does not affect another job.
//
//   HOLDFAST_FUZZ_SEED=1 npm test -- test/conformance/sqlite-file.test.ts      replays seed 1
//   HOLDFAST_FUZZ_RUNS=5000 npm test -- test/conformance/sqlite-file.test.ts   makes more runs
import assert from 'node:assert/strict'
import { describe, type TestContext, test } from 'node:test'
import fc from 'fast-check'
import { isHoldfastError } from '../../src/errors.ts'
import { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { newId } from '../../src/runtime/id.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { claimOne, deadJob, readJob } from './expect.ts'
import { asRead, oddPayload, plainPayload } from './fuzz-payloads.ts'
import { type Called, type JobArgument, verbs } from './fuzz-verbs.ts'
import type { InWorld, World } from './world.ts'

/** Codes that a bad argument may lead to. STORE_UNAVAILABLE, CLOSED and the like would name a wrong cause. */
const callersCodes = new Set<string>([
  ...['INVALID_OPTION', 'INVALID_NAME', 'INVALID_ID', 'INVALID_PAYLOAD', 'INVALID_STATE', 'JOB_NOT_FOUND'],
  ...['PAYLOAD_TOO_LARGE', 'RESULT_TOO_LARGE', 'KV_VALUE_TOO_LARGE', 'DUPLICATE_JOB_ID', 'IDEMPOTENCY_MISMATCH'],
  ...['LEASE_LOST', 'SCHEDULE_NOT_FOUND', 'JOB_DEAD', 'JOB_CANCELLED', 'WAIT_TIMEOUT'],
])
const seed = Number(process.env['HOLDFAST_FUZZ_SEED'] ?? Date.now() % 0x7fffffff)
const hangsAfterMs = 20_000
const messageMax = 1_000

export function fuzzTests(inWorld: InWorld): void {
  describe('bad input, drawn at random', () => {
    test(
      'every verb succeeds or says what is wrong, the same on every store, and affects no other job',
      inWorld(async (world, t) => {
        printSeed(t)
        await using pair = await Pair.open(world)
        for (const [name, { args, call }] of Object.entries(verbs)) {
          await t.test(name, async () => {
            await check(
              15,
              fc.asyncProperty(args, (drawn) => pair.agreeOn(call, drawn)),
            )
            await pair.cycle()
          })
        }
      }),
    )

    test(
      'a payload, result or value is refused with its path or is read back unchanged',
      inWorld(async ({ holdfast }, t) => {
        printSeed(t)
        const read = new Map<string, unknown>()
        const look = fc.asyncProperty(oddPayload, async (payload) => {
          const id = newId()
          const enqueued = await outcome(() => holdfast.queue('mail').enqueue(payload, { id }))
          const put = await outcome(() => holdfast.kv.put(id, payload))
          assert.equal(enqueued.code, put.code, 'refused both as a payload and as a value, or as neither')
          if (enqueued.code !== null) return assert.equal(enqueued.code, 'INVALID_PAYLOAD')
          read.set(id, asRead(payload))
          assert.deepEqual((await holdfast.kv.get(id))?.value, asRead(payload))
        })
        await check(100, look)
        for (const lease of await holdfast.claim(['mail'], { max: 10_000 })) {
          assert.deepEqual(lease.job.payload, read.get(lease.job.id))
          await lease.done(read.get(lease.job.id))
          assert.deepEqual((await readJob(holdfast, lease.job.id)).result, read.get(lease.job.id))
        }
        assert.equal((await holdfast.stats('mail')).done, read.size, 'every accepted job was claimed')
      }),
    )

    test(
      'plain JSON data is always accepted',
      inWorld(async ({ holdfast }, t) => {
        printSeed(t)
        const look = fc.asyncProperty(plainPayload, async (payload) => {
          const { id } = await holdfast.queue('mail').enqueue(payload)
          assert.deepEqual((await readJob(holdfast, id)).payload, asRead(payload))
        })
        await check(50, look)
      }),
    )
  })
}

function printSeed(t: TestContext): void {
  t.diagnostic(`HOLDFAST_FUZZ_SEED=${seed}`)
}

async function check<T>(runs: number, property: fc.IAsyncProperty<T>): Promise<void> {
  await fc.assert(property, { seed, numRuns: Number(process.env['HOLDFAST_FUZZ_RUNS'] ?? runs) })
}

interface Outcome {
  /** Null: it succeeded. */
  readonly code: string | null
  readonly value: unknown
}

async function outcome(call: () => unknown): Promise<Outcome> {
  const { promise: late, reject } = Promise.withResolvers<never>()
  const timer = setTimeout(() => reject(new Error(`no answer within ${hangsAfterMs} ms`)), hangsAfterMs)
  try {
    return { code: null, value: await Promise.race([(async () => call())(), late]) }
  } catch (error) {
    if (!isHoldfastError(error)) throw new Error('it failed with an error of another kind', { cause: error })
    assert.ok(callersCodes.has(error.code), `${error.code}: ${error.message}`)
    assert.match(error.message, /^[A-Z`a-z].{15,}/s, 'a sentence')
    assert.ok(error.message.length <= messageMax, `a sentence one can read: ${error.message.slice(0, 300)}`)
    return { code: error.code, value: error }
  } finally {
    clearTimeout(timer)
  }
}

/** The store under test and a second store that gets the same calls. */
class Pair implements AsyncDisposable {
  readonly #sides: readonly Side[]
  readonly #reference: Holdfast

  static async open({ holdfast, clock }: World): Promise<Pair> {
    const reference = new Holdfast(await sqlite({ path: ':memory:' })({ clock: { now: () => clock.now() } }))
    const neighbour = newId()
    return new Pair(await Promise.all([holdfast, reference].map((side) => Side.prepare(side, neighbour))), reference)
  }

  private constructor(sides: readonly Side[], reference: Holdfast) {
    this.#sides = sides
    this.#reference = reference
  }

  async agreeOn(call: Called, drawn: readonly unknown[]): Promise<void> {
    const id = newId()
    const [one, other] = await Promise.all(this.#sides.map((side) => side.judge(call, drawn, id)))
    assert.equal(one?.code, other?.code, `refused by one store, but not by another: ${say(one)} and ${say(other)}`)
  }

  async cycle(): Promise<void> {
    for (const side of this.#sides) await side.cycle()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#reference.close()
  }
}

function say(outcome: Outcome | undefined): string {
  return outcome?.code ? (outcome.value as Error).message : 'success'
}

class Side {
  readonly #holdfast: Holdfast
  readonly #neighbour: string
  readonly #before: unknown

  /** The neighbour is a job in a paused queue, so that claims from all queues do not take it. */
  static async prepare(holdfast: Holdfast, neighbour: string): Promise<Side> {
    const options = { id: neighbour, headers: { a: 'b' }, dedup: { key: 'k' }, idempotencyKey: 'i', priority: 0 }
    await holdfast.pause('neighbour')
    await holdfast.queue('neighbour').enqueue({ is: 'untouched' }, options)
    await holdfast.kv.put('neighbour', 'untouched')
    return new Side(holdfast, neighbour, await neighbourhood(holdfast, neighbour))
  }

  private constructor(holdfast: Holdfast, neighbour: string, before: unknown) {
    this.#holdfast = holdfast
    this.#neighbour = neighbour
    this.#before = before
  }

  /** `id` is the job in the arguments, if there is one. */
  async judge(call: Called, drawn: readonly unknown[], id: string): Promise<Outcome> {
    const args: unknown[] = []
    for (const arg of drawn) args.push(isJob(arg) ? await jobs[arg](this.#holdfast, id) : arg)
    const lease = () => heldJob(this.#holdfast)
    const judged = await outcome(() => call({ holdfast: this.#holdfast, lease }, args))
    assert.deepEqual(await neighbourhood(this.#holdfast, this.#neighbour), this.#before, 'the neighbour is unchanged')
    return judged
  }

  /** The store still works. */
  async cycle(): Promise<void> {
    const { id } = await this.#holdfast.queue('cycle').enqueue({ n: 1 })
    const lease = await claimOne(this.#holdfast, 'cycle')
    assert.equal(lease.job.id, id)
    assert.equal((await lease.done('result')).state, 'done')
    assert.equal(await this.#holdfast.result(id), 'result')
    await this.#holdfast.sweep()
  }
}

function neighbourhood(holdfast: Holdfast, id: string): Promise<unknown> {
  return Promise.all([readJob(holdfast, id), holdfast.kv.get('neighbour')])
}

/** Creates the job that an argument asks for, and returns its id. */
const jobs: Readonly<Record<JobArgument, (holdfast: Holdfast, id: string) => Promise<string>>> = {
  '@ready': async (holdfast, id) => (await holdfast.queue('ready').enqueue(1, { id })).id,
  '@scheduled': async (holdfast, id) => (await holdfast.queue('ready').enqueue(1, { id, delay: '1h' })).id,
  '@held': async (holdfast) => (await heldJob(holdfast)).job.id,
  '@dead': (holdfast) => deadJob(holdfast, 'dying'),
  '@absent': async () => newId(),
}

function isJob(arg: unknown): arg is JobArgument {
  return typeof arg === 'string' && Object.hasOwn(jobs, arg)
}

async function heldJob(holdfast: Holdfast): Promise<Lease> {
  await holdfast.queue('held').enqueue(1)
  return claimOne(holdfast, 'held', { lease: '1h' })
}
