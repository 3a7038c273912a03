// Promise 8 under random load: whatever the order of calls, the limits of queue, key and batch hold at every moment, rates hold
// over every window, and in the end no job is stuck at a limit.
//
//   HOLDFAST_LOAD_SEED=1 npm test -- test/conformance/sqlite-memory.test.ts      replays seed 1
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Batch } from '../../src/batch/batch.ts'
import type { JobInfo } from '../../src/client/job-info.ts'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { Random } from '../torture/random.ts'
import { allJobs } from './expect.ts'
import type { InWorld, TestClock, World } from './world.ts'

const seed = Number(process.env['HOLDFAST_LOAD_SEED'] ?? Date.now() % 0x7fffffff)
const steps = Number(process.env['HOLDFAST_LOAD_STEPS'] ?? 150)

interface Call {
  readonly host: string | null
}

const limits = { queue: 5, key: 2, batch: 2 }
const rates = { key: { count: 4, windowMs: 30_000 }, queue: { count: 12, windowMs: 20_000 } }
/** One queue has a limit on running jobs, another on starts. */
const crawl = defineQueue<Call>('crawl', {
  attempts: 20,
  limit: [{ key: ({ host }) => host, concurrency: limits.key }, { concurrency: limits.queue }],
})
const fetches = defineQueue<Call>('fetch', {
  attempts: 20,
  limit: [
    { key: ({ host }) => host, rate: { count: rates.key.count, per: rates.key.windowMs } },
    { rate: { count: rates.queue.count, per: rates.queue.windowMs } },
  ],
})
const hosts = ['a', 'b', 'c', null]

export function limitLoadTests(inWorld: InWorld): void {
  describe('limits under random load', () => {
    for (const round of [0, 1, 2]) {
      test(
        `hold at every moment, and no job is stuck in the end (${round + 1})`,
        inWorld(async (world, t) => {
          t.diagnostic(`HOLDFAST_LOAD_SEED=${seed}`)
          const load = new Load(world, new Random(seed + round))
          await load.run()
          await load.drain()
          load.judgeStarts()
        }),
      )
    }
  })
}

interface Start {
  readonly at: number
  readonly queue: string
  readonly host: string | null
}

class Load {
  readonly #holdfast: Holdfast
  readonly #clock: TestClock
  readonly #another: World['another']
  readonly #random: Random
  readonly #leases: Lease[] = []
  readonly #starts: Start[] = []
  readonly #batches: Batch[] = []

  constructor({ holdfast, clock, another }: World, random: Random) {
    this.#holdfast = holdfast
    this.#clock = clock
    this.#another = another
    this.#random = random
  }

  async run(): Promise<void> {
    const clients = [this.#holdfast, await this.#another()]
    for (let step = 0; step < steps; step++) {
      await this.#step(this.#random.pick(clients))
      await this.#judge()
    }
  }

  async #step(client: Holdfast): Promise<void> {
    const random = this.#random
    const step = random.weighted({ enqueue: 4, batch: 0.3, claim: 6, settle: 6, pass: 3, interfere: 1.5, control: 0.5 })
    if (step === 'enqueue') await this.#enqueue(client)
    else if (step === 'batch') await this.#submit(client)
    else if (step === 'claim') await this.#claim(client)
    else if (step === 'settle') await this.#settle()
    else if (step === 'pass') await this.#pass(client, random.below(15_000))
    else if (step === 'interfere') await this.#interfere(client)
    else await this.#controlBatch()
  }

  async #enqueue(client: Holdfast): Promise<void> {
    const random = this.#random
    const entries = Array.from({ length: 1 + random.below(6) }, () => ({
      payload: { host: random.pick(hosts) },
      priority: random.pick([0, 5, 5, 9]),
      delay: random.chance(0.2) ? random.below(20_000) : 0,
    }))
    await client.queue(random.pick([crawl, fetches])).enqueueMany(entries)
  }

  async #submit(client: Holdfast): Promise<void> {
    const random = this.#random
    const items = Array.from({ length: random.below(12) }, () => ({
      queue: random.pick([crawl, fetches]),
      payload: { host: random.pick(hosts) },
    }))
    this.#batches.push(await client.batch({ name: 'load', concurrency: limits.batch }, items))
  }

  async #claim(client: Holdfast): Promise<void> {
    const queues = this.#random.pick([[crawl], [fetches], [crawl, fetches]])
    const lease = 5_000 + this.#random.below(20_000)
    for (const held of await client.claim(queues, { max: 1 + this.#random.below(8), lease })) {
      const { queue, payload } = held.job
      this.#leases.push(held)
      this.#starts.push({ at: this.#clock.now(), queue, host: (payload as Call).host })
    }
  }

  async #settle(): Promise<void> {
    const random = this.#random
    const [lease] = this.#leases.splice(random.below(this.#leases.length), 1)
    if (!lease) return
    const how = random.weighted({
      done: 6,
      dead: 1,
      retry: 1,
      later: 1,
      release: 1,
      snooze: 1,
      cancelled: 0.5,
      forget: 2,
    })
    await allowed(
      {
        done: () => lease.done(),
        dead: () => lease.dead(new Error('no')),
        retry: () => lease.retry(new Error('no'), { delay: 0 }),
        later: () => lease.retry(new Error('no'), { delay: 5_000 }),
        release: () => lease.release(),
        snooze: () => lease.snooze(5_000),
        cancelled: () => lease.cancelled(),
        forget: async () => undefined,
      }[how](),
    )
  }

  async #pass(client: Holdfast, ms: number): Promise<void> {
    await this.#clock.advance(ms)
    await client.sweep()
  }

  async #interfere(client: Holdfast): Promise<void> {
    const random = this.#random
    const page = await client.jobs({ state: random.pick(['held', 'ready', 'scheduled', 'running', 'dead']), limit: 20 })
    if (page.jobs.length === 0) return
    const { id } = random.pick(page.jobs)
    const host = random.pick(hosts)
    const how = random.weighted({
      cancel: 1,
      delete: 1,
      requeue: 2,
      reprioritise: 1,
      reschedule: 1,
      change: 2,
      wake: 1,
    })
    await allowed(
      {
        cancel: () => client.cancel(id),
        delete: () => client.delete(id),
        requeue: () => client.requeue(id),
        reprioritise: () => client.reprioritise(id, random.below(10)),
        reschedule: () => client.reschedule(id, this.#clock.now() + random.below(10_000)),
        change: () => client.change(id, { payload: { host }, limitKey: host }),
        wake: () => client.wake(id),
      }[how](),
    )
  }

  async #controlBatch(): Promise<void> {
    if (this.#batches.length === 0) return
    const batch = this.#random.pick(this.#batches)
    const how = this.#random.pick(['pause', 'resume', 'retryFailed', 'cancel', 'resume'] as const)
    await allowed(batch[how]())
  }

  /** Checks the limits at this moment. */
  async #judge(): Promise<void> {
    const running = await allJobs(this.#holdfast, { state: 'running' })
    const crawling = running.filter(({ queue }) => queue === 'crawl')
    assert.ok(crawling.length <= limits.queue, `${crawling.length} of queue crawl run`)
    for (const [key, count] of tally(crawling, ({ limitKey }) => limitKey)) {
      assert.ok(count <= limits.key, `${count} of key ${key} run`)
    }
    for (const [batch, count] of tally(running, (job) => job.batch)) {
      assert.ok(count <= limits.batch, `${count} of batch ${batch} run`)
    }
  }

  /** Stops the load, and runs every job until it has ended. */
  async drain(): Promise<void> {
    for (const batch of this.#batches) await allowed(batch.resume())
    for (let turn = 0; turn < 2_000; turn++) {
      await this.#claim(this.#holdfast)
      for (const lease of this.#leases.splice(0)) await allowed(lease.done())
      await this.#judge()
      const { held, scheduled, ready, running } = await this.#holdfast.stats()
      if (held + scheduled + ready + running === 0) return
      await this.#pass(this.#holdfast, 5_000)
    }
    assert.fail('every job ends after the load has stopped')
  }

  /** Checks the rates over every window. */
  judgeStarts(): void {
    const starts = this.#starts.filter(({ queue }) => queue === 'fetch')
    judge(starts, rates.queue, 'queue fetch')
    for (const host of hosts.filter((each) => each !== null)) {
      judge(
        starts.filter((start) => start.host === host),
        rates.key,
        `key ${host}`,
      )
    }
  }
}

function judge(starts: readonly Start[], { count, windowMs }: typeof rates.key, whose: string): void {
  for (const [i, { at }] of starts.entries()) {
    const next = starts[i + count]
    assert.ok(!next || next.at - at >= windowMs, `more than ${count} jobs of ${whose} started within ${windowMs} ms`)
  }
}

function tally(jobs: readonly JobInfo[], keyOf: (job: JobInfo) => string | null): Map<string, number> {
  const counts = new Map<string, number>()
  for (const job of jobs) {
    const key = keyOf(job)
    if (key !== null) counts.set(key, (counts.get(key) ?? 0) + 1)
  }
  return counts
}

/** Refusals that earlier calls may have caused. */
async function allowed(call: Promise<unknown>): Promise<void> {
  try {
    await call
  } catch (error) {
    const codes = ['LEASE_LOST', 'INVALID_STATE', 'JOB_NOT_FOUND', 'BATCH_NOT_FOUND'] as const
    if (!codes.some((code) => isHoldfastError(error, code))) throw error
  }
}
