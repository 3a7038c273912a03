// A primary is lost, and its standby takes over. Replication is synchronous, as it must be for a server that may not lose an
// answered commit.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { startServer, startStandby } from '../support/postgres-server.ts'
import { switchingProxy } from '../support/switching-proxy.ts'
import { faultsMs, query, Scene } from './scene.ts'

test('a standby that takes over has everything that was answered, and work goes on by itself', async (t) => {
  await using primary = await startServer({ settings: { wal_keep_size: '256MB' } })
  await using standby = await startStandby(primary)
  await query(primary.url(), `alter system set synchronous_standby_names = 'standby'`)
  await query(primary.url(), 'select pg_reload_conf()')
  await using proxy = await switchingProxy(primary.url())
  await using scene = await Scene.start({ store: { url: proxy.url } })
  await sleep(faultsMs / 4)

  proxy.switchTo(standby.url()) // too early: it is still read-only
  await primary.stop('immediate')
  await scene.untilAllEmit('store.down', 1)
  await query(standby.url(), 'select pg_promote()')
  const tookMs = await scene.resumed()
  t.diagnostic(`every worker went on within ${tookMs.toFixed()} ms of the promotion`)
  const [row] = await query(standby.url(), 'select left(pg_walfile_name(pg_current_wal_lsn()), 8) as timeline')
  assert.equal(row?.['timeline'], '00000002')
  await scene.judge(t)
})
