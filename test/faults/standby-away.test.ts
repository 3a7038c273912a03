// A synchronous standby is away: the server keeps commits waiting, and answers everything else.
import assert from 'node:assert/strict'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { isHoldfastError } from '../../src/errors.ts'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { healthHandler, storeHealth } from '../../src/observe/health.ts'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { heard } from '../conformance/expect.ts'
import { type Server, startServer, startStandby } from '../support/postgres-server.ts'
import { switchingProxy } from '../support/switching-proxy.ts'
import { query, Scene } from './scene.ts'

let server: Server

before(async () => {
  server = await startServer({ inMemory: true })
})
after(() => server[Symbol.asyncDispose]())

test('while a standby is away under load, workers report it once; when it is back, work goes on and nothing was settled twice', async (t) => {
  await using primary = await startServer({ settings: { wal_keep_size: '256MB' } })
  await using standby = await startStandby(primary)
  await requireStandby(primary, 'standby')
  await using scene = await Scene.start({ store: { url: primary.url(), answerTimeout: '1s' } })
  await standby.stop('fast')
  await scene.untilAllEmit('store.down', 1)
  await standby.start()
  const tookMs = await scene.resumed()
  t.diagnostic(`every worker went on within ${tookMs.toFixed()} ms`)
  await scene.untilAllEmit('store.up', 1)
  await scene.judge(t)
  for (const worker of scene.workers) {
    assert.equal(worker.events('store.down').length, 1)
    assert.equal(worker.events('lease.lost').length, 0)
  }
})

test('a worker says that its commits wait for a standby, is not ready, keeps its leases, and goes on by itself', async () => {
  await using world = await setup('worker')
  const { holdfast } = world
  const [quick, long] = await holdfast.queue('mail').enqueueMany([{ payload: 'quick' }, { payload: 'long' }])
  const ends = { quick: Promise.withResolvers<void>(), long: Promise.withResolvers<void>() }
  const started = heard(holdfast, 'job.started', 2)
  const handler = ({ payload }: { payload: unknown }) => ends[payload as 'quick' | 'long'].promise
  const worker = holdfast.work('mail', handler, { concurrency: 5, lease: '3s' })
  await started
  const lost = listening(holdfast, 'lease.lost')
  const ups = listening(holdfast, 'store.up')
  await world.standbyAway()
  const down = heard(holdfast, 'store.down')
  ends.quick.resolve()
  const [{ by, error } = assert.fail()] = await down
  assert.equal(by, worker.name)
  assert.match(error.message, /waiting for a synchronous standby \(synchronous_standby_names = 'nobody_here'\)/)
  assert.match(worker.health().why ?? '', /synchronous standby/)
  const ready = healthHandler({ ready: { store: storeHealth(holdfast), worker: () => worker.health() } })
  const answer = await ready(new Request('http://localhost/health/ready'))
  assert.equal(answer.status, 503)
  assert.match(((await answer.json()) as { parts: { store: { why: string } } }).parts.store.why, /synchronous standby/)
  assert.deepEqual(
    (await holdfast.jobs({ state: 'running' })).jobs.map(({ id }) => id).sort(),
    [quick?.id, long?.id].sort(),
  )
  const beat = worker.health().lastHeartbeatAt as Date
  while ((worker.health().lastHeartbeatAt as Date) <= beat) await sleep(50)
  assert.deepEqual(ups, [], 'answers to other calls do not mean that commits are answered')
  const done = heard(holdfast, 'job.done', 2)
  const up = heard(holdfast, 'store.up')
  ends.long.resolve()
  await world.standbyBack()
  await Promise.all([done, up])
  assert.deepEqual(lost, [])
  assert.equal(worker.health().ok, true)
  assert.equal((await ready(new Request('http://localhost/health/ready'))).status, 200)
})

test('a client without workers emits store.down for an enqueue that waits for a standby; the enqueue lands once', async () => {
  await using world = await setup('producer')
  const { holdfast } = world
  await holdfast.queue('mail').enqueue(0)
  await world.standbyAway()
  const [down, up] = [heard(holdfast, 'store.down'), heard(holdfast, 'store.up')]
  const enqueued = holdfast.queue('mail').enqueue(1)
  const [{ by, error } = assert.fail()] = await down
  assert.equal(by, `process ${process.pid}`)
  assert.equal(holdfast.stalled, error)
  await world.standbyBack()
  assert.equal((await enqueued).status, 'created')
  const [{ awayMs } = assert.fail()] = await up
  assert.ok(awayMs >= 1_000, `${awayMs} ms`)
  assert.equal(holdfast.stalled, null)
  assert.equal((await holdfast.stats('mail')).ready, 2)
})

test('a login that a role is set for at its start finds its own commits that wait for a standby', async () => {
  await query(server.url(), 'create role team')
  await query(server.url(), 'create role app login in role team')
  await query(server.url(), 'alter role app set role = team')
  await query(server.url(), 'create database set_role owner team')
  const login = new URL(server.url('set_role'))
  login.username = 'app'
  await using holdfast = await open(postgres({ url: login.href, answerTimeout: '1s', listen: false }), {
    logger: false,
  })
  await holdfast.queue('mail').enqueue(0)
  await requireStandby(server, 'nobody_here')
  try {
    await untilCommitsWait(server)
    let isAnswered = false
    const downs = listening(holdfast, 'store.down')
    const enqueued = holdfast.queue('mail').enqueue(1)
    const ended = enqueued.finally(() => {
      isAnswered = true
    })
    const pid = await waitingPid(server.url(), new Set(), () => isAnswered)
    const latest = Date.now() + 15_000
    while (holdfast.stalled === null) {
      assert.ok(Date.now() < latest, 'the wait is noticed within 15 s')
      assert.equal(await waitingPid(server.url(), new Set(), () => isAnswered), pid, 'its connection is not cut')
      await sleep(50)
    }
    assert.match(downs[0]?.error.message ?? '', /synchronous standby/)
    await requireStandby(server, '')
    assert.equal((await ended).status, 'created')
  } finally {
    await requireStandby(server, '')
  }
})

for (const how of ['cancel', 'terminate'] as const) {
  test(`a settlement whose wait for a standby is ended by pg_${how}_backend is settled once`, async () => {
    await using world = await setup(`ended_by_${how}`)
    const { holdfast, url } = world
    await query(url, 'create table effect (n int)')
    const { id } = await holdfast.queue('mail').enqueue(1)
    const [lease] = await holdfast.claim(['mail'])
    await world.standbyAway()
    const settled = lease?.done('ok', { sql: [{ text: 'insert into effect values (1)' }] })
    await world.untilWaiting(1)
    await query(url, `select pg_${how}_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
    if (how === 'terminate') await world.standbyBack()
    assert.equal((await settled)?.state, 'done')
    await world.standbyBack()
    assert.equal((await holdfast.job(id))?.state, 'done')
    assert.deepEqual(await query(url, 'select count(*)::int as n from effect'), [{ n: 1 }])
  })
}

for (const [verb, { prepare, stored }] of Object.entries<EndedVerb>({
  enqueue: {
    prepare: async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(0)
      return () => holdfast.queue('mail').enqueue(1)
    },
    stored: 'select count(*)::int as n from holdfast.job where payload = $$1$$',
  },
  'enqueue with a dedup key': {
    prepare: async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(0)
      return () => holdfast.queue('mail').enqueue(1, { dedup: { key: 'k' } })
    },
    stored: 'select count(*)::int as n from holdfast.job where payload = $$1$$',
  },
  'key-value write': {
    prepare:
      async ({ holdfast }) =>
      () =>
        holdfast.kv.put('k', 1),
    stored: `select version::int as n from holdfast.kv where key = 'k'`,
  },
  settlement: {
    prepare: async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(1)
      const [lease] = await holdfast.claim(['mail'], { lease: '1m' })
      return () => lease?.done('ok')
    },
    stored: 'select count(*)::int as n from holdfast.ended',
  },
  'settlement with an effect that sets something, alone in its transaction': {
    prepare: async ({ holdfast, url }) => {
      await query(url, 'create table effect (n int)')
      await holdfast.queue('mail').enqueue(1)
      const [lease] = await holdfast.claim(['mail'], { lease: '1m' })
      const sql = [{ text: `select set_config('work_mem', '5MB', true)` }, { text: 'insert into effect values (1)' }]
      return () => lease?.done('ok', { sql })
    },
    stored: 'select count(*)::int as n from effect',
  },
}))
  test(`an answer to a call whose session ended while it waited for a standby waits for the standby too: ${verb}`, async () => {
    await using world = await setup(`ended_${verb.replaceAll(/\W+/g, '_').slice(0, 30)}`)
    const { url } = world
    const call = await prepare(world)
    await world.standbyAway()
    let isAnswered = false
    const answered = Promise.resolve(call()).finally(() => {
      isAnswered = true
    })
    answered.catch(() => undefined)
    const pids = new Set<number>()
    for (let ends = 0; ends < 2; ends++) {
      const pid = await waitingPid(url, pids, () => isAnswered)
      pids.add(pid)
      await query(url, `select pg_terminate_backend(${pid})`)
    }
    await waitingPid(url, pids, () => isAnswered)
    assert.equal(isAnswered, false)
    await world.standbyBack()
    await answered
    assert.deepEqual(await query(url, stored), [{ n: 1 }])
  })

test('an enqueue that the old primary had committed alone, when a standby without it takes over, is stored there before it is answered', async () => {
  await using primary = await startServer({ settings: { wal_keep_size: '64MB' } })
  await using standby = await startStandby(primary)
  await using proxy = await switchingProxy(primary.url())
  await using holdfast = await open(postgres({ url: proxy.url, listen: false }), { logger: false })
  const mail = holdfast.queue('mail')
  await mail.enqueue('before')
  await requireStandby(primary, 'standby')
  await mail.enqueue('with the standby')
  await standby.stop('fast')
  let isAnswered = false
  const enqueued = mail.enqueue('without the standby').finally(() => {
    isAnswered = true
  })
  const first = await waitingPid(primary.url())
  await query(primary.url(), `select pg_terminate_backend(${first})`)
  await waitingPid(primary.url(), new Set([first]), () => isAnswered)
  await rm(join(standby.dataDirectory, 'standby.signal')) // so that it starts as a primary, and does not catch up
  await standby.start()
  proxy.switchTo(standby.url())
  const { id } = await enqueued
  assert.deepEqual(await query(standby.url(), `select payload from holdfast.job where id = '${id}'`), [
    { payload: '"without the standby"' },
  ])
})

interface EndedVerb {
  /** Answers the call to make. */
  prepare(world: { readonly holdfast: Holdfast; readonly url: string }): Promise<() => Promise<unknown> | undefined>
  /** Counts how often it was carried out. */
  readonly stored: string
}

test('the doctor of another process names the commits that wait, and repairs nothing while they do', async () => {
  await using world = await setup('doctor')
  const { holdfast, url } = world
  await holdfast.queue('mail').enqueue(0)
  await using other = await open(postgres({ url, listen: false }), { logger: false })
  assert.equal((await findingOf(other, 'waiting-commits')).severity, 'fine')
  await query(url, 'update holdfast.tally set ready = ready + 5') // for the doctor to repair
  await world.standbyAway()
  assert.match((await findingOf(other, 'waiting-commits')).sentence, /^No synchronous standby is connected/)
  const enqueued = holdfast.queue('mail').enqueue(1)
  await world.untilWaiting(1, 2_500)
  const waiting = await findingOf(other, 'waiting-commits', { fix: true })
  assert.equal(waiting.severity, 'wrong')
  assert.match(waiting.sentence, /^1 commit waits for a synchronous standby .*'nobody_here'.* Nothing was repaired\.$/)
  assert.match(waiting.fix ?? '', /synchronous_standby_names/)
  assert.equal((await findingOf(other, 'counts')).severity, 'wrong')
  await world.standbyBack()
  await enqueued
  assert.equal((await findingOf(other, 'waiting-commits')).severity, 'fine')
  assert.equal((await findingOf(other, 'counts', { fix: true })).repaired, true)
})

test('if all connections wait for a standby, renewals and the doctor are answered, and other calls fail in bounded time', async () => {
  await using world = await setup('used_up', 2)
  const { holdfast } = world
  const [first, second] = await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, delay: '1h' }])
  const [lease] = await holdfast.claim(['mail'], { lease: '5s' })
  assert.equal(lease?.job.id, first?.id)
  await world.standbyAway()
  const down = heard(holdfast, 'store.down')
  const waiting = [holdfast.kv.put('k', 1), holdfast.cancel(second?.id as string)]
  await world.untilWaiting(2)
  await down
  await lease?.renew()
  const error = await holdfast.stats('mail').catch((thrown: unknown) => thrown)
  assert.ok(isHoldfastError(error, 'STORE_UNAVAILABLE'), String(error))
  assert.match(error.message, /synchronous standby.* Nothing was carried out\.$/)
  assert.equal(error.facts['mayHaveLanded'], false)
  assert.match((await findingOf(holdfast, 'waiting-commits')).sentence, /synchronous standby/)
  await world.standbyBack()
  await Promise.all(waiting)
  assert.equal((await holdfast.stats('mail')).cancelled, 1)
})

async function findingOf(holdfast: Holdfast, id: string, options: { readonly fix?: boolean } = {}) {
  return (await holdfast.doctor(options)).find((finding) => finding.id === id) ?? assert.fail(`no finding ${id}`)
}

function listening<Name extends keyof HoldfastEvents>(holdfast: Holdfast, name: Name): HoldfastEvents[Name][] {
  const facts: HoldfastEvents[Name][] = []
  holdfast.on(name, (each) => facts.push(each))
  return facts
}

async function setup(name: string, connections = 10) {
  await query(server.url(), `create database ${name}`)
  const url = server.url(name)
  const holdfast = await open(postgres({ url, answerTimeout: '1s', listen: false, connections }), { logger: false })
  const waiting = `select count(*)::int as n from pg_stat_activity
                    where wait_event = 'SyncRep' and clock_timestamp() - query_start >= AGE * interval '1 millisecond'`
  const untilWaiting = async (count: number, ageMs = 0) => {
    while ((await query(url, waiting.replace('AGE', String(ageMs))))[0]?.['n'] !== count) await sleep(20)
  }
  const standbyBack = () => requireStandby(server, '')
  const dispose = async () => {
    await standbyBack()
    await holdfast.close()
  }
  const standbyAway = async () => {
    await requireStandby(server, 'nobody_here')
    await untilCommitsWait(server)
  }
  return { holdfast, url, untilWaiting, standbyAway, standbyBack, [Symbol.asyncDispose]: dispose }
}

/** Waits until another session than these waits for a standby. Fails if the call is answered instead. */
async function waitingPid(
  url: string,
  known: ReadonlySet<number> = new Set(),
  isAnswered = () => false,
): Promise<number> {
  for (;;) {
    const rows = await query(url, `select pid from pg_stat_activity where wait_event = 'SyncRep'`)
    const pid = rows.map((row) => row['pid'] as number).find((each) => !known.has(each))
    if (pid !== undefined) return pid
    assert.ok(!isAnswered(), 'the call waits')
    await sleep(20)
  }
}

/** Another process of the server makes the setting count, a moment later. So this commits until one waits, and ends that one. */
async function untilCommitsWait(of: Server): Promise<void> {
  const client = new pg.Client(of.url())
  await client.connect()
  const pid = (await client.query('select pg_backend_pid() as pid')).rows[0].pid
  let [isOver, hasEnded] = [false, false]
  const waited = (async () => {
    while (!isOver) await client.query(`select pg_logical_emit_message(true, 'test', '')`)
    hasEnded = true
  })()
  const cancel = `select pg_cancel_backend(pid) from pg_stat_activity where pid = ${pid} and wait_event = 'SyncRep'`
  while (!hasEnded) {
    isOver ||= (await query(of.url(), cancel)).length > 0
    if (isOver) await query(of.url(), cancel) // the next may have begun to wait
    await sleep(10)
  }
  await waited
  await client.end()
}

/** Commits wait for this standby; '': for none. */
async function requireStandby(of: Server, name: string): Promise<void> {
  const client = new pg.Client(of.url())
  await client.connect()
  await client.query(`set synchronous_commit = off`)
  await client.query(`alter system set synchronous_standby_names = '${name}'`)
  await client.query('select pg_reload_conf()')
  const shown = async () => (await client.query('show synchronous_standby_names')).rows[0].synchronous_standby_names
  while ((await shown()) !== name) await sleep(10)
  await client.end()
}
