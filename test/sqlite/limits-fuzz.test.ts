// Random verbs on jobs with limit keys, on items and on batches. After each verb the counts equal those of the rows, limits are
// kept, and no job is held whose key has a free slot.
import assert from 'node:assert/strict'
import { randomInt } from 'node:crypto'
import { test } from 'node:test'
import type { JobState, NewJob } from '../../src/job/record.ts'
import type { Settlement } from '../../src/job/transition.ts'
import type { BatchAction, BulkChange, ClaimedJob } from '../../src/store/store.ts'
import { assertCountsEqualRecount } from './recount.ts'
import { minute, newJob, type StoreWorld, storeWorld } from './store-world.ts'

const steps = 400
const keyMax = 2
const queueMax = 7
const batchMax = 2

test('random verbs keep every count and every limit correct', async (context) => {
  const seed = Number(process.env['HOLDFAST_SEED'] ?? randomInt(2 ** 31))
  context.diagnostic(`HOLDFAST_SEED=${seed}`)
  await using world = await storeWorld()
  const player = new Player(world, seed)
  await player.define()
  for (let step = 0; step < steps; step++) {
    const verb = await player.step()
    try {
      assertCountsEqualRecount(world.db)
      assertLimits(world)
    } catch (error) {
      throw new Error(`After step ${step}, ${verb}, with HOLDFAST_SEED=${seed}: ${(error as Error).message}`, {
        cause: error,
      })
    }
  }
  await player.drain()
  assertCountsEqualRecount(world.db)
  assert.deepEqual(await player.unfinished(), [], `unfinished batches without items, HOLDFAST_SEED=${seed}`)
})

function assertLimits({ db }: StoreWorld): void {
  const rows = (sql: string) =>
    db
      .prepare(sql)
      .all()
      .map((row) => ({ ...row }))
  assert.deepEqual(rows(`select * from holdfast_key where admitted > ${keyMax}`), [], 'keys above their limit')
  assert.deepEqual(
    rows(`select * from holdfast_key where has_line = 1 and admitted < ${keyMax}`),
    [],
    'keys with held jobs and a free slot',
  )
  assert.deepEqual(rows(`select * from holdfast_queue where running > ${queueMax}`), [], 'queues above their limit')
  assert.deepEqual(
    rows('select * from holdfast_batch where concurrency is not null and running > concurrency'),
    [],
    'batches above their limit',
  )
}

class Player {
  readonly #world: StoreWorld
  #state: number
  #batches: string[] = []
  #ids: string[] = []
  #held: ClaimedJob[] = []

  constructor(world: StoreWorld, seed: number) {
    this.#world = world
    this.#state = seed
  }

  async step(): Promise<string> {
    const verbs = Object.keys(this.#verbs)
    const verb = this.#one(verbs) as string
    await this.#verbs[verb]?.()
    return verb
  }

  /** Sometimes with a rate that is never reached: its counts must be right from the first moment. */
  async define(): Promise<void> {
    const rate = this.#chance(2) ? { count: 1_000_000, windowMs: minute } : null
    await this.#world.define({
      limit: { concurrency: queueMax, rate: null },
      keyLimit: { concurrency: keyMax, rate },
    })
  }

  readonly #verbs: Readonly<Record<string, () => Promise<unknown>>> = {
    define: () => this.define(),
    enqueue: () => this.#world.store.enqueue([{ jobs: this.#jobs() }]),
    open: async () => {
      const concurrency = this.#chance(2) ? batchMax : null
      this.#batches.push(await this.#world.openBatch({ concurrency, failShare: this.#chance(3) ? 0.5 : null }))
    },
    add: async () => this.#withBatch((batch) => this.#world.store.addItems({ batch, at: null, jobs: this.#jobs() })),
    control: async () => {
      const as = this.#one(['close', 'close', 'pause', 'resume', 'resume', 'cancel', 'retryFailed', 'delete'] as const)
      await this.#withBatch((batch) => this.#world.control(batch, as as BatchAction))
    },
    claim: async () => void this.#held.push(...(await this.#world.claim(1 + this.#below(6)))),
    claimMore: async () => void this.#held.push(...(await this.#world.claim(10))),
    settle: () => this.#settleSome(),
    settleMore: () => this.#settleSome(),
    cancel: () => this.#world.store.cancel([{ id: this.#anyId(), effects: null }]),
    requeue: () => this.#world.store.requeue([this.#anyId()]),
    reprioritise: () => this.#alter({ as: 'reprioritise', priority: this.#below(3), by: null }),
    reschedule: () =>
      this.#alter({ as: 'reschedule', runAt: this.#world.clock.time + this.#below(2) * minute, by: null }),
    change: () => this.#alter({ as: 'change', limitKey: this.#one(['a', 'b', 'c', null]), by: null }),
    wake: () => this.#alter({ as: 'wake', data: null }),
    delete: () => this.#alter({ as: 'delete' }),
    deleteAll: () => this.#changeAll({ as: 'delete' }, ['held', 'dead', 'scheduled']),
    cancelAll: () => this.#changeAll({ as: 'cancel' }, ['held', 'ready', 'running']),
    requeueAll: () => this.#changeAll({ as: 'requeue' }, ['dead', 'cancelled', 'done']),
    reprioritiseAll: () => this.#changeAll({ as: 'reprioritise', priority: this.#below(3) }, ['held', 'ready']),
    rescheduleAll: () => {
      const runAt = this.#world.clock.time + this.#below(2) * minute
      return this.#changeAll({ as: 'reschedule', runAt }, ['held', 'ready', 'scheduled'])
    },
    sweep: () => this.#sweep(),
    later: async () => {
      this.#world.clock.time += this.#below(3 * minute)
      await this.#sweep()
    },
  }

  /** One step for the jobs of one of these states that have one limit key. */
  async #changeAll(change: BulkChange, states: readonly JobState[]): Promise<void> {
    const filter = { queues: ['mail'], states: [this.#one(states)], limitKey: this.#one(['a', 'b', 'c']) }
    await this.#world.store.changeAll({ filter, change, dryRun: false, by: null, after: null, until: null })
  }

  /** Ends every job and batch that can still end. */
  async drain(): Promise<void> {
    for (const batch of this.#batches)
      for (const as of ['resume', 'close'] as const) await this.#world.control(batch, as)
    for (let round = 0; round < 200; round++) {
      this.#world.clock.time += 2 * minute
      await this.#sweep()
      const jobs = await this.#world.claim(100)
      await this.#world.settle(jobs)
      const [stats] = await this.#world.store.stats()
      const { held = 0, ready = 0, scheduled = 0, running = 0 } = stats?.counts ?? {}
      if (held + ready + scheduled + running === 0) return
    }
    assert.fail('jobs are left that never end')
  }

  async unfinished(): Promise<readonly string[]> {
    const { batches } = await this.#world.store.batches({ state: null, limit: 1_000, after: null })
    return batches.filter(({ finishedAt }) => finishedAt === null).map(({ id, state }) => `${id} ${state}`)
  }

  async #sweep(): Promise<void> {
    while ((await this.#world.store.sweep({ max: 1 + this.#below(20) })).more);
  }

  async #settleSome(): Promise<void> {
    const jobs = this.#held.splice(0, 1 + this.#below(this.#held.length + 1))
    const requests = jobs.map(({ id, fence }) => ({ id, fence, retryDelayMs: 0, settlement: this.#settlement() }))
    await this.#world.store.settle(requests)
  }

  #settlement(): Settlement {
    const error = { message: 'no' }
    const put = { put: [{ key: 'k', value: '1', ttlMs: null }], delete: [], sql: [], enqueue: this.#jobs(2) }
    const refused = { ...put, enqueue: [newJob({ id: this.#anyId(), idGiven: true, limitKey: 'a' })] }
    return this.#one([
      { as: 'done', result: null, effects: null },
      {
        as: 'done',
        result: '1',
        effects: null,
        annotations: { outcome: 'saved', warning: null, costs: { tokens: 1 } },
      },
      { as: 'done', result: null, effects: put },
      { as: 'done', result: null, effects: refused },
      { as: 'dead', error, effects: null, costs: { tokens: 2 } },
      { as: 'retry', error, delayMs: this.#below(2) * minute, ending: 'failed' },
      { as: 'release' },
      { as: 'snooze', delayMs: this.#below(2) * minute },
      { as: 'cancelled', effects: null },
    ] as const)
  }

  #jobs(max = 8): NewJob[] {
    return Array.from({ length: 1 + this.#below(max) }, () => {
      const job = newJob({
        limitKey: this.#one(['a', 'b', 'c', null]),
        priority: this.#below(3),
        delayMs: this.#chance(4) ? minute : 0,
        startBefore: this.#chance(8) ? this.#world.clock.time + 2 * minute : null,
        dedup: this.#chance(5) ? { key: `d${this.#below(4)}`, scope: 'live', replace: this.#chance(2) } : null,
        maxAttempts: 2,
      })
      this.#ids.push(job.id)
      return job
    })
  }

  #alter(
    change:
      | { as: 'wake'; data: null }
      | { as: 'delete' }
      | { as: 'reprioritise'; priority: number; by: null }
      | { as: 'reschedule'; runAt: number; by: null }
      | { as: 'change'; limitKey: string | null; by: null },
  ) {
    return this.#world.store.alter([{ id: this.#anyId(), ...change }])
  }

  async #withBatch(work: (batch: string) => Promise<unknown>): Promise<void> {
    if (this.#batches.length > 0) await work(this.#one(this.#batches) as string)
  }

  #anyId(): string {
    return this.#one(this.#ids) ?? newJob().id
  }

  #one<T>(list: readonly T[]): T {
    return list[this.#below(list.length)] as T
  }

  #chance(in_: number): boolean {
    return this.#below(in_) === 0
  }

  #below(max: number): number {
    this.#state = (Math.imul(this.#state, 1_103_515_245) + 12_345) >>> 0
    return Math.floor((this.#state / 2 ** 32) * max)
  }
}
