// Connections that end under load: ended by an administrator, cut after a commit was sent, or ended with the server.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { machineMs } from '../sqlite/process.ts'
import { cuttingProxy } from '../support/cutting-proxy.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { faultsMs, query, Scene } from './scene.ts'

let server: Server

before(async () => {
  server = await startServer()
})
after(() => server[Symbol.asyncDispose]())

test('connections that an administrator ends every 50 ms lose and double nothing', async (t) => {
  const url = await database('ended')
  await using scene = await Scene.start({ store: { url } })
  const ended = await storm(url)
  const tookMs = await scene.resumed()
  t.diagnostic(`${ended} connections ended in ${faultsMs} ms; every worker went on within ${tookMs.toFixed()} ms`)
  await scene.judge(t)
})

test('answers that are lost after a commit double nothing', async (t) => {
  const url = await database('cut')
  await using proxy = await cuttingProxy(url)
  await using scene = await Scene.start({ store: { url: proxy.url }, direct: url })
  const said = ['commit\0', 'settle_done', '.enqueue(', '.claim(', 'pg_notify'] as const
  let cuts = 0
  for (const until = machineMs() + faultsMs; machineMs() < until; cuts++) {
    const cut = proxy.cut(said[cuts % said.length] as string, cuts % 7 === 6 ? 'during' : 'after')
    await Promise.race([cut, sleep(300)]) // there may be no commit to cut for a while
    await sleep(20)
  }
  const tookMs = await scene.resumed()
  t.diagnostic(`${cuts} cuts in ${faultsMs} ms; every worker went on within ${tookMs.toFixed()} ms`)
  await scene.judge(t)
})

test('a server that shuts down or crashes under load is reported as away once, and work goes on by itself', async (t) => {
  const url = await database('restarts')
  await using scene = await Scene.start({ store: { url } })
  for (const [n, mode] of (['fast', 'immediate'] as const).entries()) {
    await server.stop(mode)
    await scene.untilAllEmit('store.down', n + 1)
    await server.start()
    const tookMs = await scene.resumed()
    t.diagnostic(`stopped ${mode}: every worker went on within ${tookMs.toFixed()} ms`)
    await scene.untilAllEmit('store.up', n + 1)
  }
  await scene.judge(t)
  for (const worker of scene.workers) assert.equal(worker.events('store.down').length, 2)
})

async function database(name: string): Promise<string> {
  await query(server.url(), `create database ${name}`)
  return server.url(name)
}

/** Ends all connections to the database but its own, every 50 ms; answers how many. */
async function storm(url: string): Promise<number> {
  const name = new URL(url).pathname.slice(1)
  const end = `select pg_terminate_backend(pid) from pg_stat_activity
    where datname = '${name}' and backend_type = 'client backend'`
  let ended = 0
  for (const until = machineMs() + faultsMs; machineMs() < until; ) {
    ended += (await query(server.url(), end)).length
    await sleep(50)
  }
  return ended
}
