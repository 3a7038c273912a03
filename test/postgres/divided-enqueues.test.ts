// Enqueues that are sent together are divided if the database refuses one of them. Each part is a commit of its own.
import assert from 'node:assert/strict'
import test from 'node:test'
import { isHoldfastError } from '../../src/errors.ts'
import { allJobs } from '../conformance/expect.ts'
import { inWorld, useDatabase, type World } from './world.ts'

useDatabase()

for (const [kind, options] of [
  ['plain', {}],
  ['with dedup keys', { dedup: { key: 'k' } }],
] as const) {
  test(
    `if a queue is redefined between two parts of a divided group (${kind}), each job is stored once and answered as stored`,
    inWorld(async (world) => {
      const { mail, two, other, gate } = await dividedWorld(world)
      const group = Promise.allSettled([
        mail.enqueue('forbidden'),
        mail.enqueue('waits'),
        two.enqueue('c', options),
        two.enqueue('d'),
      ])
      await world.waiters(1, 0, 'enqueue')
      await other.queue('two', { attempts: 7 }).enqueue('by the other process')
      await gate.commit()
      const [forbidden, ...stored] = await group
      assert.ok(forbidden?.status === 'rejected' && isHoldfastError(forbidden.reason, 'INVALID_OPTION'))
      const ids = stored.map((each) => (each.status === 'fulfilled' ? each.value.id : String(each.reason)))
      const jobs = new Map((await allJobs(world.holdfast)).map((job) => [job.id, job]))
      assert.deepEqual(
        ids.map((id) => [jobs.get(id)?.payload ?? id, jobs.get(id)?.maxAttempts]),
        [
          ['waits', 5],
          ['c', 7],
          ['d', 7],
        ],
      )
      assert.equal(jobs.size, 6)
    }),
  )
}

test(
  'if a queue is redefined between two parts of a divided group, a job of an earlier part that has run does not run again',
  inWorld(async (world) => {
    const { mail, two, other, gate } = await dividedWorld(world)
    const group = Promise.allSettled([
      ...['a', 'b', 'forbidden', 'waits'].map((payload) => mail.enqueue(payload)),
      ...['c', 'd', 'e', 'f'].map((payload) => two.enqueue(payload)),
    ])
    await world.waiters(1, 0, 'enqueue')
    const leases = await other.claim(['mail'], { max: 10 })
    assert.deepEqual(
      leases.map(({ job }) => job.payload),
      ['opens', 'a', 'b'],
    )
    for (const lease of leases) await lease.done()
    await other.queue('two', { attempts: 7 }).enqueue('by the other process')
    await gate.commit()
    assert.deepEqual(
      (await group).map(({ status }) => status),
      ['fulfilled', 'fulfilled', 'rejected', ...Array(5).fill('fulfilled')],
    )
    const again = await other.claim(['mail'], { max: 10 })
    assert.deepEqual(
      again.map(({ job }) => job.payload),
      ['waits'],
    )
  }),
)

test(
  'if the lane of one enqueue of a group cannot be opened, that one fails alone',
  inWorld(async (world) => {
    const mail = world.holdfast.queue('mail')
    await mail.enqueue('opens')
    await refuseIn(world, 'lane', `new.priority = 9`)
    const group = await Promise.allSettled([
      mail.enqueue('a'),
      mail.enqueue('b', { priority: 9 }),
      mail.enqueue('c', { priority: 2 }),
    ])
    assert.deepEqual(
      group.map(({ status }) => status),
      ['fulfilled', 'rejected', 'fulfilled'],
    )
    const reason: unknown = (group[1] as PromiseRejectedResult).reason
    assert.ok(isHoldfastError(reason, 'INVALID_OPTION'), String(reason))
    assert.match(reason.message, /not_allowed/)
  }),
)

/** A job `forbidden` is refused. A job `waits` waits until `gate` commits. */
async function dividedWorld(world: World) {
  const other = await world.another()
  const [mail, two] = [world.holdfast.queue('mail'), world.holdfast.queue('two')]
  await mail.enqueue('opens')
  await two.enqueue('opens')
  const gate = await world.begin()
  await gate.run('select pg_advisory_xact_lock(1)')
  await refuseIn(
    world,
    'job',
    `new.payload = '"forbidden"'`,
    `if new.payload = '"waits"' then perform pg_advisory_xact_lock(1); end if;`,
  )
  return { mail, two, other, gate }
}

async function refuseIn(world: World, table: string, condition: string, before = ''): Promise<void> {
  await world.rows(`create function holdfast.refuse() returns trigger language plpgsql as
    $$ begin ${before} if ${condition} then raise exception 'not_allowed'; end if; return new; end $$`)
  await world.rows(
    `create trigger refuse before insert on holdfast.${table} for each row execute function holdfast.refuse()`,
  )
}
