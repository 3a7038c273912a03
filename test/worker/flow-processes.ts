// Flows whose workers are killed, or stopped past their leases, at each point where something could be lost or done twice.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { readJob, rejects } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { Program } from '../sqlite/process.ts'
import { crashFlow, type Task, webhooks } from './crash-flows.ts'
import type { ExecutesOptions } from './programs/executes.ts'
import type { MakeSharedStore, SharedStore } from './shared-store.ts'

const leaseMs = 500
const flow = crashFlow(
  () => {},
  async () => {},
)

export function flowProcessTests(makeSharedStore: MakeSharedStore): void {
  describe('a flow whose worker dies', () => {
    for (const when of ['before', 'after'] as const)
      test(`${when} a step is committed has every effect once; a committed step is not called again`, async () => {
        await using scene = await setUp(makeSharedStore)
        const id = await scene.start('steps')
        const first = await scene.execute('first', { dies: { at: 'checkpoint', call: 1, when } })
        assert.equal(await first.ended, 'SIGKILL')
        const second = await scene.execute('second')
        assert.deepEqual(await scene.holdfast.result(id), [`a of ${id}`, `b of ${id}`])
        const names = [...first.did, ...second.did].map(({ did }) => did)
        assert.deepEqual(names, when === 'before' ? ['a', 'a', 'b'] : ['a', 'b'])
        const keys = [...first.did, ...second.did].filter(({ did }) => did === 'a').map(({ key }) => key)
        assert.equal(new Set(keys).size, 1, 'the key of a step outlives its process')
        assert.deepEqual(await scene.effects(id), ['a', 'b'])
        assert.equal((await scene.holdfast.stats('followUps')).ready, 2)
      })

    test('after the start of a step that runs once was committed throws STEP_UNCERTAIN in the next execution', async () => {
      await using scene = await setUp(makeSharedStore)
      const id = await scene.start('once')
      const first = await scene.execute('first', { dies: { at: 'checkpoint', call: 1, when: 'after' } })
      await first.ended
      const second = await scene.execute('second')
      assert.equal(await scene.holdfast.result(id), 'STEP_UNCERTAIN')
      assert.deepEqual([...first.did, ...second.did], [], 'it was not called')
    })

    test('in a step of its own, each time, is dead at its cap', async () => {
      await using scene = await setUp(makeSharedStore)
      const id = await scene.start('poison')
      for (const name of ['first', 'second', 'third']) {
        const worker = await scene.execute(name)
        assert.equal(await worker.ended, 'SIGKILL')
      }
      await scene.execute('fourth')
      await rejects(scene.holdfast.result(id), 'JOB_DEAD')
      assert.equal((await readJob(scene.holdfast, id)).attempts, 3)
    })

    for (const when of ['before', 'after'] as const)
      test(`${when} its child was enqueued has one child, and its result`, async () => {
        await using scene = await setUp(makeSharedStore)
        const id = await scene.start('call')
        const first = await scene.execute('first', { dies: { at: 'settle', call: 1, when } })
        await first.ended
        await scene.execute('second', { scores: true })
        assert.equal(await scene.holdfast.result(id), 42)
        assert.equal((await scene.holdfast.jobs({ queue: 'scoring' })).jobs.length, 1)
      })

    for (const when of ['before', 'after'] as const)
      test(`${when} a signal was used up gets each signal once, in order`, async () => {
        await using scene = await setUp(makeSharedStore)
        const id = await scene.start('signals')
        for (const item of ['x', 'y']) await scene.holdfast.signal(flow, id, 'item', item)
        const first = await scene.execute('first', { dies: { at: 'checkpoint', call: 1, when } })
        await first.ended
        await scene.execute('second')
        assert.deepEqual(await scene.holdfast.result(id), ['x', 'y'])
      })

    for (const when of ['before', 'after'] as const)
      test(`${when} its end was committed has one webhook`, async () => {
        await using scene = await setUp(makeSharedStore)
        const id = await scene.start('end')
        const first = await scene.execute('first', { dies: { at: 'settle', call: 1, when } })
        await first.ended
        await scene.execute('second')
        assert.equal(await scene.holdfast.result(id), 'ended')
        assert.equal((await scene.holdfast.stats(webhooks.queue)).ready, 1)
      })
  })

  describe('a flow whose worker is stopped past its lease', () => {
    test('is executed by another, and the late checkpoint of the first is refused with all its effects', async () => {
      await using scene = await setUp(makeSharedStore)
      const id = await scene.start('hold')
      const first = await scene.execute('first', { holds: true })
      await first.until(() => first.did.some(({ did }) => did === 'b'))
      await scene.sharedStore.suspend(first)
      const second = await scene.execute('second')
      assert.equal(await scene.holdfast.result(id), 'b')
      first.go()
      first.kill('SIGCONT')
      await first.until(() => first.events.includes('lease.lost'))
      assert.deepEqual(await scene.effects(id), ['a', 'b'])
      assert.deepEqual([first.did.map(({ did }) => did), second.did.map(({ did }) => did)], [['a', 'b'], ['b']])
    })
  })
}

interface Scene extends AsyncDisposable {
  readonly holdfast: Holdfast
  readonly sharedStore: SharedStore
  start(task: Task): Promise<string>
  execute(name: string, options?: Omit<ExecutesOptions, 'leaseMs'>): Promise<Executing>
  /** What steps have inserted into the table of the application. */
  effects(id: string): Promise<unknown[]>
}

async function setUp(makeSharedStore: MakeSharedStore): Promise<Scene> {
  const sharedStore = await makeSharedStore()
  const holdfast = await sharedStore.open()
  await sharedStore.query('create table effect (job text, worker text)')
  const started: Executing[] = []
  return {
    holdfast,
    sharedStore,
    async start(task) {
      return (await holdfast.start(flow, task)).id
    },
    async execute(name, options = {}) {
      const executing = new Executing(sharedStore.url, name, { leaseMs, ...options })
      started.push(executing)
      return executing
    },
    async effects(id) {
      const rows = await sharedStore.query(`select worker from effect where job = '${id}' order by worker`)
      return rows.map(({ worker }) => worker)
    },
    async [Symbol.asyncDispose]() {
      await recount(holdfast)
      await Promise.all(started.map((each) => each[Symbol.asyncDispose]()))
      await sharedStore[Symbol.asyncDispose]()
    },
  }
}

/** A worker in a process of its own, and what it has reported. */
class Executing implements AsyncDisposable {
  readonly did: { readonly did: string; readonly key: string }[] = []
  readonly events: string[] = []
  readonly #program: Program
  #onReport = Promise.withResolvers<void>()

  constructor(url: string, name: string, options: ExecutesOptions) {
    this.#program = Program.start('../../worker/programs/executes', url, name, JSON.stringify(options))
    void this.#listen()
  }

  get ended(): Promise<number | NodeJS.Signals> {
    return this.#program.ended
  }

  async until(isEnough: () => boolean): Promise<void> {
    while (!isEnough()) await this.#onReport.promise
  }

  go(): void {
    this.#program.tell('go on')
  }

  kill(signal: NodeJS.Signals): void {
    this.#program.kill(signal)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#program[Symbol.asyncDispose]()
  }

  async #listen(): Promise<void> {
    try {
      for (;;) {
        const report = await this.#program.hear<{ did: string; key: string } | { event: string }>()
        if ('did' in report) this.did.push(report)
        else this.events.push(report.event)
        this.#onReport.resolve()
        this.#onReport = Promise.withResolvers()
      }
    } catch (error) {
      this.#onReport.promise.catch(() => {}) // no test may be waiting for more
      this.#onReport.reject(error)
    }
  }
}
