// Gates of limit keys: what a process leaves behind that dies at the worst moment, and what they cost.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { defineQueue } from '../../src/definition.ts'
import { claimOne } from '../conformance/expect.ts'
import { type Hand, inHand, type Rule, useDatabase } from './hand.ts'
import { touched } from './plans.ts'

useDatabase()

const perTenant = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })

/** Whoever would let in, or would look whether a batch is finished, finds nothing to do: as if he had died before. */
const letsNobodyIn: Rule = {
  from: `begin
  perform set_config('synchronous_commit', 'off', true);
  for v_lock in select distinct hashtext`,
  to: `begin
  return;
  perform set_config('synchronous_commit', 'off', true);
  for v_lock in select distinct hashtext`,
}
const looksAtNone: Rule = {
  from: 'join holdfast.batch b on b.no = u.no and not b.is_deleted',
  to: 'join holdfast.batch b on b.no = u.no and not b.is_deleted and false',
}

async function without(hand: Hand, rule: Rule, act: () => Promise<void>): Promise<void> {
  await hand.withoutRule(rule)
  await act()
  await hand.withoutRule({ from: rule.to, to: rule.from })
}

test(
  'who dies between a settlement and the admission leaves no key stuck: a sweep lets in',
  inHand(async (hand) => {
    const { holdfast } = hand
    const queue = holdfast.queue(perTenant)
    for (let n = 0; n < 3; n++) await queue.enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await without(hand, letsNobodyIn, () => lease.done().then(() => undefined))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 0, held: 2 }, 'nobody was let in')
    const other = await hand.another()
    await other.sweep()
    await (await claimOne(other, 'mail')).done()
    await (await claimOne(other, 'mail')).done()
    assert.equal((await holdfast.stats('mail')).done, 3)
  }),
)

test(
  'who dies between an enqueue and the admission leaves nobody in the line: a sweep lets in',
  inHand(async (hand) => {
    const { holdfast } = hand
    await without(hand, letsNobodyIn, async () => {
      for (const tenant of ['a', 'b']) await holdfast.queue(perTenant).enqueue({ tenant })
    })
    assert.equal((await holdfast.stats('mail')).held, 2)
    await (await hand.another()).sweep()
    assert.equal((await holdfast.stats('mail')).ready, 2)
  }),
)

test(
  'who dies between the last settlement and the completion leaves no batch unfinished: a sweep tells, once',
  inHand(async (hand) => {
    const { holdfast } = hand
    const items = [{ queue: 'mail', payload: 1 }]
    const batch = await holdfast.batch({ name: 'b', onComplete: { queue: 'told' } }, items)
    const lease = await claimOne(holdfast, 'mail')
    await without(hand, looksAtNone, () => lease.done().then(() => undefined))
    assert.equal((await batch.progress()).state, 'running')
    const [first, second] = [await hand.another(), await hand.another()]
    await Promise.all([first.sweep(), second.sweep()])
    assert.equal((await batch.progress()).state, 'done')
    assert.equal((await holdfast.stats('told')).ready, 1)
  }),
)

test(
  'what a claim reads does not depend on how many jobs are held, nor on how many keys there are',
  inHand(async (hand) => {
    const { holdfast } = hand
    const session = await hand.connect()
    const cost = async () => {
      await holdfast.queue(perTenant).enqueue({ tenant: randomUUID() })
      const text = `select * from holdfast.claim('${randomUUID()}', 'w', 600000, 1, '{mail}', '{}', null)`
      return touched(session, hand.schema.sql(text))
    }
    for (let n = 0; n < 10; n++) await cost()
    const alone = await cost()
    const tenants = (count: number, of: number) =>
      Array.from({ length: count }, (_, n) => ({ payload: { tenant: `t${n % of}` } }))
    for (let n = 0; n < 4; n++) await holdfast.queue(perTenant).enqueueMany(tenants(5_000, 1_000))
    await hand.rows(`update holdfast.job set run_at = run_at where is_held`) // and an old version of each
    assert.ok((await holdfast.stats('mail')).held >= 19_000)
    const among = Math.min(await cost(), await cost(), await cost())
    assert.ok(among < alone + 50, `${among} blocks behind 19,000 held jobs of 1,000 keys, ${alone} without them`)
  }),
)
