// Erasing a person's data. Every place in which a job can carry text gets a word of its own. Then the jobs that have the person's
// label are deleted, and every row of every table of the store is searched for these words.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { allJobs, claimOne, heard, hour, minute, rejects } from './expect.ts'
import { begun } from './watch.ts'
import { type ApplicationSql, type Dialect, type InWorld, type StoreUnderTest, withSql } from './world.ts'

const labels = { customer: 'c1' }

export function eraseTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  if (!dialect) return
  const inSqlWorld = withSql(inWorld)
  describe('erasing', () => {
    for (const [how, erase] of Object.entries(ways))
      test(
        `${how}: no table has a word of the jobs with a label, once they are deleted and a process has swept; limit keys go within an hour`,
        inSqlWorld(async ({ holdfast, another, clock, sql }) => {
          await using _watched = await begun(holdfast) // the store records changes meanwhile
          const running = await fill(holdfast)
          assert.deepEqual(await missingIn(sql, dialect), [], 'every word is in the store')
          await erase(holdfast, running)
          await (await another()).sweep()
          const left = Object.fromEntries(await foundIn(sql, dialect))
          for (const table of dialect.keepKeys) if (left[table]?.join() === secret('limit')) delete left[table]
          assert.deepEqual(left, {})
          await clock.advance(hour + minute)
          await (await another()).sweep()
          assert.deepEqual(await foundIn(sql, dialect), [])
        }),
      )

    test(
      'the words of an error group stay while a dead job of the group does, and go with the last one',
      inSqlWorld(async ({ holdfast, another, sql }) => {
        const mail = holdfast.queue('mail', { attempts: 1 })
        const ids: string[] = []
        for (const payload of [1, 2]) {
          ids.push((await mail.enqueue(payload)).id)
          await (await claimOne(holdfast, 'mail')).retry(new Error(secret('message')))
        }
        const groups = async () => {
          await (await another()).sweep()
          return (await foundIn(sql, dialect)).map(([table]) => table)
        }
        await holdfast.delete(ids[0] as string)
        assert.equal((await groups()).length, 2, 'the dead job, and its group')
        await holdfast.delete(ids[1] as string)
        assert.deepEqual(await groups(), [])
      }),
    )
  })
}

const ways: Readonly<Record<string, (holdfast: Holdfast, running: Lease) => Promise<void>>> = {
  'deleted one by one': async (holdfast, running) => {
    await rejects(holdfast.delete(running.job.id), 'INVALID_STATE')
    await running.done()
    for (const { id } of await allJobs(holdfast, { labels })) await holdfast.delete(id)
  },
  'deleted by label': async (holdfast, running) => {
    const all = (await allJobs(holdfast, { labels })).length
    const answer = await holdfast.deleteAll({ labels })
    const skipped = [{ reason: 'running', count: 1, ids: [running.job.id] }]
    assert.deepEqual([answer.changed, answer.skipped], [all - 1, skipped])
    await running.done()
    assert.equal((await holdfast.deleteAll({ labels })).changed, 1)
  },
  'cancelled, then deleted by label': async (holdfast, running) => {
    const asked = await holdfast.cancelAll({ labels })
    assert.equal(asked.requested, 1)
    await running.cancelled()
    await holdfast.deleteAll({ labels })
    assert.deepEqual(await allJobs(holdfast, { labels }), [])
  },
}

/** Places in which a job carries text. Words of letters alone: an error group replaces those with digits. */
const places = [
  ...['payload', 'headers', 'wake', 'label', 'dedup', 'window', 'idempotency', 'limit', 'held', 'scheduled'],
  ...['result', 'progress', 'message', 'cause', 'stack', 'code', 'retried', 'cancel', 'item', 'offer', 'running'],
] as const
type Place = (typeof places)[number]

function secret(place: Place): string {
  return `geheim${place}`
}

/** Jobs with the label in every state, and a death notice. Answers the one that runs. */
async function fill(holdfast: Holdfast) {
  const mail = holdfast.queue('mail')
  const work = (queue: string) => claimOne(holdfast, queue)

  // Waiting
  const woken = await mail.enqueue(secret('payload'), {
    labels: { ...labels, note: secret('label') },
    headers: { trace: secret('headers') },
    dedup: { key: secret('dedup') },
    idempotencyKey: secret('idempotency'),
    delay: '1h',
  })
  await holdfast.wake(woken.id, { by: secret('wake') })
  await mail.enqueue(secret('scheduled'), { labels, delay: '1d' })
  const limit = { key: (payload: string) => payload, concurrency: 1, rate: { count: 10, per: '1m' } } as const
  const limited = holdfast.queue(defineQueue<string>('limited', { limit }))
  for (const place of ['limit', 'limit', 'held'] as const) {
    await limited.enqueue(secret('limit'), { labels, headers: { of: secret(place) } })
  }
  await (await work('limited')).release()

  // With a history, and in an inbox
  await holdfast.queue('failing').enqueue(1, { labels })
  await (await work('failing')).retry(new Error(secret('retried')), { delay: '1h' })
  await holdfast.batch({ name: 'articles' }, [{ queue: 'items', payload: { item: secret('item') }, labels }])
  const snoozed = heard(holdfast, 'job.snoozed')
  const worker = holdfast.work('items', (job) => job.offer(secret('offer'), { inbox: 'extracted' }))
  await snoozed
  await worker.stop()

  // Ended
  await holdfast.queue('ending').enqueue(1, { labels, dedup: { key: secret('window'), scope: { window: '1d' } } })
  const done = await work('ending')
  await done.progress(0.5, secret('progress'))
  await done.done({ result: secret('result') })
  const dying = holdfast.queue('dying', { attempts: 1, onDead: { queue: 'alerts' } })
  await dying.enqueue(secret('payload'), { labels })
  await (await work('dying')).retry(failure())
  await holdfast.queue('asked').enqueue(1, { labels })
  const asked = await work('asked')
  const followUp = { queue: 'undone', payload: secret('cancel'), labels }
  await holdfast.cancel(asked.job.id, { effects: { enqueue: [followUp] } })
  await asked.cancelled()

  // Running
  await holdfast.queue('slow').enqueue(secret('running'), { labels, limitKey: secret('limit') })
  const running = await work('slow')
  await running.progress(0.5, secret('progress'))
  return running
}

function failure(): Error {
  const cause = Object.assign(new Error(secret('cause')), { code: secret('code') })
  const error = new Error(secret('message'), { cause })
  error.stack = `Error: ${error.message}\n    at ${secret('stack')} (file.ts:1:1)`
  return error
}

/** Tables of the store with the words that are in their rows. */
async function foundIn(sql: ApplicationSql, dialect: Dialect): Promise<[table: string, words: string[]][]> {
  const found: [string, string[]][] = []
  for (const { name } of await sql.query(dialect.storeTables(sql.schema))) {
    const rows = JSON.stringify(await sql.query(`select * from ${dialect.tableOf(sql.schema, String(name))}`))
    const words = places.map(secret).filter((word) => rows.includes(word))
    if (words.length > 0) found.push([String(name), words])
  }
  return found
}

async function missingIn(sql: ApplicationSql, dialect: Dialect): Promise<string[]> {
  const there = new Set((await foundIn(sql, dialect)).flatMap(([, words]) => words))
  return places.map(secret).filter((word) => !there.has(word))
}
