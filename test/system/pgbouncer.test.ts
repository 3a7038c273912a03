// Everything through PgBouncer in transaction mode: two connections to the server for all clients, another one for each
// transaction, and no reset in between. No call may rely on its session.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { query, Scene } from '../faults/scene.ts'
import { machineMs } from '../sqlite/process.ts'
import { poolerVersion, startPooler } from '../support/pgbouncer.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { needs } from '../support/system.ts'

const skip = needs('pgbouncer')

describe('PgBouncer in transaction mode', { skip }, () => {
  let server: Server
  let databases = 0

  before(async () => {
    server = await startServer()
  })
  after(() => server[Symbol.asyncDispose]())

  async function freshDatabase(): Promise<string> {
    const name = `pooled_${databases++}`
    await query(server.url(), `create database ${name}`)
    return server.url(name)
  }

  for (const preparedStatements of [0, 100]) {
    test(`workers of several processes do every job once (max_prepared_statements ${preparedStatements})`, async (t) => {
      const [major, minor] = await poolerVersion()
      if (preparedStatements > 0 && (major > 1 || minor < 21))
        return t.skip(`PgBouncer ${major}.${minor} keeps no prepared statements; 1.21 does`)
      const direct = await freshDatabase()
      await using pooler = await startPooler(direct, { preparedStatements })
      await using scene = await Scene.start({ store: { url: pooler.url }, direct, workers: 3 })
      await sleep(3_000)
      await scene.judge(t)
    })
  }

  test('every kind of call works, and leaves nothing behind in the sessions', async () => {
    const direct = await freshDatabase()
    await using pooler = await startPooler(direct)
    await using holdfast = await open(postgres({ url: pooler.url, listen: false }))
    await using other = await open(postgres({ url: pooler.url, listen: false }))
    const seen: string[] = []
    const watch = other.watch({ queue: 'mail' })
    const watching = (async () => {
      for await (const { state } of watch) if (seen.push(state) === 3) return
    })()
    await sleep(200)
    const { id } = await holdfast.queue('mail', { attempts: 2 }).enqueue('a', { dedup: { key: 'k' } })
    assert.equal((await other.queue('mail').enqueue('b', { dedup: { key: 'k' } })).status, 'duplicate')
    const lease = await claimOne(other, 'mail')
    await lease.renew('1m')
    await lease.progress(0.5, 'half')
    assert.equal((await holdfast.job(id))?.progress?.value, 0.5)
    await lease.done('sent', {
      put: [{ key: 'k', value: 1 }],
      sql: [{ text: 'create temp table t (n int) on commit drop' }],
    })
    assert.equal(await holdfast.result(id), 'sent')
    const entry = await other.kv.get('k')
    assert.ok(await holdfast.kv.compareAndSet('k', entry?.version ?? null, 2))
    await holdfast.queue('mail').enqueue('late', { delay: 100 })
    await sleep(150)
    assert.equal((await other.sweep()).promoted, 1)
    await watching
    await holdfast.pause('mail')
    assert.deepEqual(await other.claim(['mail']), [])
    await recount(holdfast)
    for (let n = 0; n < 10; n++) {
      const [row] = await query(
        pooler.url,
        `select (select count(*)::int from pg_listening_channels()) as channels, current_setting('synchronous_commit') as sync,
          current_setting('lock_timeout') as lock_timeout, current_setting('statement_timeout') as statement_timeout,
          (select count(*)::int from pg_locks where locktype = 'advisory') as locks`,
      )
      assert.deepEqual(row, { channels: 0, sync: 'on', lock_timeout: '0', statement_timeout: '0', locks: 0 })
    }
  })

  test('wake-ups bypass it if the server can be reached directly, and are polled for otherwise', async (t) => {
    const direct = await freshDatabase()
    await using pooler = await startPooler(direct)
    await using producer = await open(postgres({ url: pooler.url, listen: false }))
    for (const [how, listen] of Object.entries({ listened: direct, tried: true, polled: false })) {
      await using worker = await open(postgres({ url: pooler.url, listen }))
      await worker.claim([how], { wait: 2_500 }) // the store knows by now whether notifications arrive
      const tookMs: number[] = []
      for (let n = 0; n < 5; n++) {
        const claiming = worker.claim([how], { wait: '10s' })
        await sleep(300)
        const from = machineMs()
        await producer.queue(how).enqueue(n)
        for (const lease of await claiming) await lease.done()
        tookMs.push(Math.round(machineMs() - from))
      }
      t.diagnostic(`${how}: from enqueue to claim ${tookMs} ms`)
      const median = tookMs.toSorted((a, b) => a - b)[2] as number
      assert.ok(
        median < (how === 'listened' ? 250 : 1_500),
        'a claim that receives the notification does not wait for the next poll',
      )
    }
  })

  test('the doctor reports that notifications do not arrive through it, and nothing else', async () => {
    const direct = await freshDatabase()
    await using pooler = await startPooler(direct)
    await using through = await open(postgres({ url: pooler.url }))
    const bad = (await through.doctor()).filter(({ severity }) => severity !== 'fine')
    assert.deepEqual(
      bad.map(({ id }) => id),
      ['notifications'],
    )
    await using past = await open(postgres({ url: pooler.url, listen: direct }))
    assert.ok((await past.doctor()).every(({ severity }) => severity === 'fine'))
  })

  test('a slow call is waited for: the driver does not know which server process runs it', async () => {
    await using pooler = await startPooler(await freshDatabase())
    await using holdfast = await open(postgres({ url: pooler.url, listen: false, answerTimeout: '200ms' }))
    await holdfast.queue('mail').enqueue(1)
    const [lease] = await holdfast.claim(['mail'])
    const from = machineMs()
    await lease?.done(null, { sql: [{ text: 'select pg_sleep(2)' }] })
    assert.ok(machineMs() - from >= 2_000)
  })

  test('a restart of the server behind it is handled like any other', async (t) => {
    const direct = await freshDatabase()
    await using pooler = await startPooler(direct, { poolSize: 4 })
    await using scene = await Scene.start({ store: { url: pooler.url }, direct })
    await server.stop('immediate')
    await rejects(scene.holdfast.queue('tasks').enqueue({ do: 'work' }), 'STORE_UNAVAILABLE')
    await server.start()
    const tookMs = await scene.resumed()
    t.diagnostic(`every worker went on within ${tookMs.toFixed()} ms`)
    await scene.judge(t)
  })
})
