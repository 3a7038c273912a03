// `holdfast flow`: runs of flows as an operator sees them, with real processes on both stores.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import test from 'node:test'
import { defineFlow, defineQueue, type Holdfast, open } from '../../src/index.ts'
import { root } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { cleanEnvironment, run } from '../support/shell.ts'

const bin = join(root, 'bin/holdfast.js')
const unknownId = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'
const columns = 80

const scoring = defineQueue<{ id: string }, number>('scoring')
const review = defineFlow<{ url: string }>('document-review', {}, async (flow, { url }) => {
  const text = await flow.step('extract', () => `text of ${url}`)
  await flow.publish({ pages: text.length })
  await flow.step('count', () => text.length)
  const verdict = await flow.signal('verdict', { timeout: '7d' })
  return { verdict }
})
const paying = defineFlow('paying', {}, (flow) => flow.signal('paid', { key: 'order-17' }))
const evil = 'a\u202eb\u001b[8mc'
const broken = defineFlow('broken', {}, (flow) =>
  flow.step(evil, () => Promise.reject(new Error(evil)), { attempts: 1 }),
)
const refused = defineFlow('refused', {}, (flow) => flow.fail('no such document'))

for (const store of ['SQLite', 'PostgreSQL'] as const) {
  test(`on ${store}, flow list finds runs by flow and state, and show has every step with what it waits for`, async () => {
    await using world = await setup(store)
    const { holdfast } = world
    await using _ = holdfast.work([[review], [refused], [broken]])
    const id = await world.parked(review, { url: 'a' })
    const { id: refusedId } = await holdfast.start(refused, null)
    await holdfast.result(refusedId).catch(() => undefined)
    await holdfast.queue('mail').enqueue('no run')

    const all = await world.json('flow', 'list')
    const states = all.runs.map(({ id, flow, state }: Listed) => [id, flow, state])
    assert.deepEqual(
      states.toSorted(),
      [
        [id, 'document-review', 'waiting'],
        [refusedId, 'refused', 'failed'],
      ].toSorted(),
    )
    const of = async (...args: string[]) =>
      (await world.json('flow', 'list', ...args)).runs.map((each: Listed) => each.id)
    assert.deepEqual(await of('--flow', 'document-review'), [id])
    assert.deepEqual(await of('--state', 'failed'), [refusedId])
    assert.deepEqual(await of('--state', 'succeeded', '--state', 'dead'), [])
    const { runs, next } = await world.json('flow', 'list', '--limit', '1')
    const rest = await of('--after', next)
    assert.deepEqual([...runs.map((each: Listed) => each.id), ...rest].toSorted(), [id, refusedId].toSorted())

    const shown = await world.json('flow', 'show', id)
    assert.deepEqual([shown.state, shown.jobState, shown.partial], ['waiting', 'scheduled', { pages: 9 }])
    assert.deepEqual(
      shown.steps.map(({ name, kind, state, attempts, signal }: Step) => [name, kind, state, attempts, signal]),
      [
        ['extract', 'step', 'done', 1, undefined],
        ['count', 'step', 'done', 1, undefined],
        ['signal:verdict', 'signal', 'waiting', 0, 'verdict'],
      ],
    )
    const { stdout } = await world.run('flow', 'show', id)
    assert.match(stdout, /^state +waiting$/m)
    assert.match(stdout, /^why +It waits for signal `verdict` until /m)
    assert.match(stdout, /^partial result +\{$/m)
    assert.match(stdout, /^extract +step +done +1 /m)
    assert.match(stdout, /^signal:verdict +signal +waiting +· /m)
    for (const line of `${stdout}${(await world.run('flow', 'list')).stdout}`.split('\n')) {
      assert.ok(line.length <= columns, line)
    }
  })

  test(`on ${store}, flow signal sends a value to a run or to a key, and the run takes it`, async () => {
    await using world = await setup(store)
    const { holdfast } = world
    await using _ = holdfast.work([[review], [paying]])
    const id = await world.parked(review, { url: 'a' })
    const sent = await world.run('flow', 'signal', id, 'verdict', '{"ok":true}')
    assert.deepEqual([sent.code, sent.stdout], [0, `Sent verdict to run ${id}.\n`])
    assert.deepEqual(await holdfast.result(id), { verdict: { ok: true } })
    const toKey = await world.json('flow', 'signal', 'paid', '12', '--key', 'order-17', '--ttl', '1d')
    assert.deepEqual(toKey, { key: 'order-17', name: 'paid', sent: true })
    assert.equal(await holdfast.result((await holdfast.start(paying, null)).id), 12)
    const late = await world.run('flow', 'signal', id, 'verdict')
    assert.equal(late.code, 1)
    assert.match(late.stderr, /INVALID_STATE/)
  })

  test(`on ${store}, flow cancel ends a run that waits, with the name of its caller`, async () => {
    await using world = await setup(store)
    const { holdfast } = world
    await using _ = holdfast.work(review)
    const id = await world.parked(review, { url: 'a' })
    assert.equal((await world.json('flow', 'cancel', id, '--by', 'ada')).status, 'requested')
    await assert.rejects(holdfast.result(id), { code: 'JOB_CANCELLED' })
    assert.equal((await world.json('flow', 'show', id)).state, 'cancelled')
  })

  test(`on ${store}, flow commands refuse jobs that are no runs, and what does not exist`, async () => {
    await using world = await setup(store)
    const { holdfast } = world
    assert.equal((await world.run('flow', 'list')).stdout, 'There are no flows yet.\n')
    const { id } = await holdfast.queue(scoring).enqueue({ id: 'x' })
    for (const args of [
      ['show', id],
      ['signal', id, 'verdict'],
      ['cancel', id],
    ]) {
      const { code, stderr } = await world.run('flow', ...args)
      assert.equal(code, 1)
      assert.match(stderr.replaceAll('\n', ' '), /is no run of a flow: its queue scoring has no flow/)
      const [verb = '', , ...rest] = args
      assert.match((await world.run('flow', verb, unknownId, ...rest)).stderr, /JOB_NOT_FOUND/)
    }
    assert.equal((await holdfast.job(id))?.state, 'ready')
    assert.match((await world.run('flow', 'list', '--flow', 'docs')).stderr, /There is no flow docs; there is none/)
  })
}

test('flow show escapes control characters of names and errors', async () => {
  await using world = await setup('SQLite')
  await using _ = world.holdfast.work(broken)
  const { id } = await world.holdfast.start(broken, null)
  await world.holdfast.result(id).catch(() => undefined)
  for (const args of [['show', id], ['list'], ['show', id, '--json']]) {
    const { stdout } = await world.run('flow', ...args)
    assert.match(stdout, /\\u202e/, args.join(' '))
    assert.doesNotMatch(stdout, /[^\P{Cc}\n]|\u202e/u, args.join(' '))
  }
})

test('wrong arguments of flow are answered with one sentence and exit code 2', async () => {
  await using world = await setup('SQLite')
  const cases: [string[], RegExp][] = [
    [['kick'], /^holdfast: flow takes list, show, signal or cancel; got "kick"\.$/],
    [['show'], /^holdfast: Write: holdfast flow show <id>$/],
    [['cancel', unknownId, 'x'], /^holdfast: Write: holdfast flow cancel <id>$/],
    [['signal', unknownId], /^holdfast: Write: holdfast flow signal <id> <name> \[json\], or .*$/],
    [['signal', unknownId, 'verdict', '{ok: 1}'], /^holdfast: The value is not JSON .*$/],
    [['signal', unknownId, 'verdict', '--ttl', '1d'], /^holdfast: --ttl is for signals .*$/],
    [['list', '--state', 'ready'], /^holdfast: --state must be one of waiting, .*; got "ready"\.$/],
    [['show', 'nonsense'], /INVALID_ID/],
  ]
  for (const [args, sentence] of cases) {
    const { code, stderr } = await world.run('flow', ...args)
    assert.match(stderr.trimEnd().replaceAll('\n', ' '), sentence, args.join(' '))
    assert.equal(code, 2, args.join(' '))
  }
})

interface Listed {
  readonly id: string
  readonly flow: string
  readonly state: string
}

interface Step {
  readonly name: string
  readonly kind: string
  readonly state: string
  readonly attempts: number
  readonly signal?: string
}

async function setup(store: 'SQLite' | 'PostgreSQL') {
  const stack = new AsyncDisposableStack()
  const scratch = stack.use(await scratchDirectory())
  const database = store === 'SQLite' ? null : stack.use(await testDatabase())
  const url = database?.url ?? `sqlite:${join(scratch.path, 'jobs.db')}`
  const holdfast: Holdfast = stack.use(await open(url, { logger: false }))
  const env = { ...cleanEnvironment(), HOLDFAST_STORE: url, COLUMNS: String(columns) }
  const holdfastCommand = (...args: string[]) => run(process.execPath, [bin, ...args], { cwd: scratch.path, env })
  const json = async (...args: string[]) => {
    const { code, stdout, stderr } = await holdfastCommand(...args, '--json')
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout)
  }
  /** Starts a run, and resolves with its id once it is parked. */
  const parked = async (flow: typeof review, payload: { url: string }): Promise<string> => {
    const isParked = new Promise((resolve) => holdfast.on('flow.parked', resolve))
    const { id } = await holdfast.start(flow, payload)
    await isParked
    return id
  }
  return { holdfast, run: holdfastCommand, json, parked, [Symbol.asyncDispose]: () => stack.disposeAsync() }
}
