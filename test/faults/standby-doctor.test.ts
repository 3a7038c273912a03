// What the doctor reports about a standby that holds back the cleanup of old rows: a real standby with a long query. The doctor
// reports from a million transactions on, which take a while; here the bound is some hundred.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { systemClock } from '../../src/runtime/clock.ts'
import { Database } from '../../src/store/postgres/connection/database.ts'
import { replicationBehind } from '../../src/store/postgres/doctor/sessions.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { type Server, startServer, startStandby } from '../support/postgres-server.ts'
import { query } from './scene.ts'

const most = 200

test('a long query on a standby is reported, by its feedback or by its slot, until it ends', async () => {
  await using primary = await startServer({ settings: { wal_keep_size: '256MB' } })
  await using standby = await startStandby(primary)
  await set(standby, { hot_standby_feedback: 'on', wal_receiver_status_interval: '1' })
  await using doctor = doctorOf(primary)
  assert.deepEqual(await doctor.findings(), [])

  await using reader = await readingAt(standby)
  await goOn(primary)
  const told = await doctor.until((found) => found?.id === 'standby-feedback')
  assert.match(told?.sentence ?? '', /^Standby standby reports by hot_standby_feedback .* [\d,]+ transactions old/)
  await reader.end()
  await doctor.until((found) => found === undefined)

  await query(primary.url(), `select pg_create_physical_replication_slot('behind', true)`)
  await set(standby, { primary_slot_name: 'behind' })
  await doctor.until((found) => found === undefined) // a standby reads from the slot
  await using again = await readingAt(standby)
  await goOn(primary)
  const slot = await doctor.until((found) => found?.id === 'replication-slot')
  assert.match(slot?.sentence ?? '', /^Replication slot behind is [\d,]+ transactions behind/)
  assert.equal(slot?.facts['active'], true)
  await again.end()
  await doctor.until((found) => found === undefined)
})

type Found = Awaited<ReturnType<typeof replicationBehind>>[number]

function doctorOf(primary: Server) {
  const pool = new pg.Pool({ connectionString: primary.url(), max: 2 })
  pool.on('error', () => {})
  const db = new Database(pool, { schema: new Schema('none'), clock: systemClock, connections: 2, answerMs: 10_000 })
  const findings = () => replicationBehind({ db }, most)
  const until = async (isIt: (found: Found | undefined) => boolean): Promise<Found | undefined> => {
    for (;;) {
      const [found] = await findings()
      if (isIt(found)) return found
      await sleep(100)
    }
  }
  return { findings, until, [Symbol.asyncDispose]: () => pool.end() }
}

/** A transaction that keeps its snapshot open. */
async function readingAt(standby: Server) {
  const client = new pg.Client(standby.url())
  client.on('error', () => {})
  await client.connect()
  await client.query('begin isolation level repeatable read; select count(*) from pg_class')
  let isOver = false
  const end = async () => {
    if (!isOver) await client.end()
    isOver = true
  }
  return { end, [Symbol.asyncDispose]: end }
}

/** Transactions that the reader does not see. */
async function goOn(primary: Server): Promise<void> {
  const loop = `for n in 1..${2 * most} loop perform pg_current_xact_id(); commit; end loop`
  await query(primary.url(), `do $$ begin ${loop}; end $$`)
}

async function set(server: Server, settings: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, value] of Object.entries(settings))
    await query(server.url(), `alter system set ${name} = '${value}'`)
  await query(server.url(), 'select pg_reload_conf()')
}
