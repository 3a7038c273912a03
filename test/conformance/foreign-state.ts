// Schedules, gates, reapers, workers and inboxes keep their state in the key-value store, where every program may write. An entry
// that another program has overwritten, or half of an entry of ours, reads as absent. It ends no loop, and affects no other
// entry.
//
//   HOLDFAST_FOREIGN_SEED=1 npm test -- test/conformance      replays seed 1
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import type { Holdfast } from '../../src/holdfast.ts'
import { putReserved } from '../support/reserved-entries.ts'
import { heard, hour, readJob } from './expect.ts'
import type { InWorld } from './world.ts'

const seed = Number(process.env['HOLDFAST_FOREIGN_SEED'] ?? Date.now() % 0x7fffffff)
/** How many values of each kind of entry are tried at once. */
const valuesTried = 60

export function foreignStateTests(inWorld: InWorld): void {
  describe('state that another program has overwritten', () => {
    test(
      'stops no other schedule, reaper, gate or inbox, and no listing of them',
      inWorld(async ({ holdfast, clock }, t) => {
        t.diagnostic(`HOLDFAST_FOREIGN_SEED=${seed}`)
        const real = await realState(holdfast)
        for (const [at, { key, value }] of real.entries()) {
          const values = fc.sample(garbled(value), { seed: seed + at, numRuns: valuesTried })
          const puts = values.map((each, i) => putReserved(holdfast, siblingOf(key, i), each))
          for (const put of await Promise.allSettled(puts)) assert.equal(put.status, 'fulfilled', key)
        }
        await holdfast.schedule('zzz', { cron: '0 * * * *', queue: 'reports' })
        const fired: string[] = []
        holdfast.on('schedule.fired', ({ schedule }) => fired.push(schedule))
        holdfast.on('firing.failed', ({ error }) => assert.fail(error))
        await clock.advance(hour)
        await holdfast.sweep()
        for (const name of ['aaa', 'zzz']) assert.ok(fired.includes(name), `${name} has fired`)
        await allIsShown(holdfast)
      }),
    )

    test(
      'does not keep a reaper from running, if its last run was overwritten',
      inWorld(async ({ holdfast }, t) => {
        t.diagnostic(`HOLDFAST_FOREIGN_SEED=${seed}`)
        const turn = { turnAt: 1, everyMs: 3_600_000, failure: { since: 1, error: 'x' } }
        const values = fc.sample(garbled(turn), { seed, numRuns: 10 })
        for (const [i, value] of [null, { turnAt: 1e300 }, { ...turn, turnAt: 1e300 }, ...values].entries()) {
          const name = `reaper-${i}`
          await putReserved(holdfast, `holdfast.reaper.${name}`, value)
          const ran = heard(holdfast, 'reaper.ran')
          const reaper = holdfast.reaper(name, { every: '1h', find: () => [], enqueue: () => null })
          await ran
          await reaper.stop()
        }
      }),
    )
  })
}

interface Entry {
  readonly key: string
  readonly value: unknown
}

/** One entry of every kind, as the client writes it. */
async function realState(holdfast: Holdfast): Promise<Entry[]> {
  const dedup = { key: 'report', scope: { window: '1h' } } as const
  const job = { priority: 2, headers: { team: 'sales' }, dedup, payload: { n: 1 } }
  await holdfast.schedule('aaa', { cron: '0 * * * *', queue: 'reports', ...job })
  await holdfast.gate('shop').close('maintenance')
  const reaper = holdfast.reaper('orders', { every: '1h', find: () => [], enqueue: () => null })
  await heard(holdfast, 'reaper.ran')
  await reaper.stop()
  const { id } = await holdfast.queue('mail').enqueue(1)
  const worker = holdfast.work('mail', (job) => job.offer({ text: 'hello' }, { inbox: 'extracted' }))
  await heard(holdfast, 'job.snoozed')
  const present = await entriesUnder(holdfast, 'holdfast.worker.')
  await worker.stop()
  assert.equal((await readJob(holdfast, id)).state, 'scheduled')
  const stay = await entriesUnder(holdfast, 'holdfast.')
  const kinds = new Set([...present, ...stay].map(({ key }) => key.split('.')[1]))
  assert.deepEqual(kinds, new Set(['worker', 'gate', 'inbox', 'reaper', 'schedule']))
  return [...present, ...stay]
}

async function entriesUnder(holdfast: Holdfast, prefix: string): Promise<Entry[]> {
  const entries = await Array.fromAsync(holdfast.kv.scan(prefix))
  return entries.map(({ key, value }) => ({ key, value }))
}

/** A key of the same kind that sorts after it. */
function siblingOf(key: string, i: number): string {
  if (key.startsWith('holdfast.inbox.')) return key.slice(0, -12) + i.toString(16).padStart(12, '0')
  return `${key}${i}`
}

/** The value with one or two parts replaced by something else, or any other JSON. */
function garbled(value: unknown): fc.Arbitrary<unknown> {
  const paths = pathsIn(value)
  const number = fc.constantFrom(0, -1, 1.5, 1e15, -1e15, 8.64e15, 1e300, Number.MAX_SAFE_INTEGER)
  const text = fc.constantFrom('', '\0', 'a b', '{', '60 * * * *', '0 0 30 2 *', 'x'.repeat(5_000), 'Nowhere/Else')
  const other = fc.oneof(fc.jsonValue({ maxDepth: 2 }), number, text, fc.constant(undefined))
  const change = fc.tuple(fc.constantFrom(...paths), other)
  const changed = fc
    .array(change, { minLength: 1, maxLength: 2 })
    .map((changes) => changes.reduce((garbledValue, [path, by]) => exchanged(garbledValue, path, by), value))
  return fc.oneof({ weight: 9, arbitrary: changed }, { weight: 1, arbitrary: other }).map((each) => plain(each))
}

function pathsIn(value: unknown): string[][] {
  if (typeof value !== 'object' || value === null) return [[]]
  return Object.entries(value).flatMap(([key, part]) => [[key], ...pathsIn(part).map((path) => [key, ...path])])
}

function exchanged(value: unknown, [key, ...rest]: readonly string[], by: unknown): unknown {
  if (key === undefined || typeof value !== 'object' || value === null) return by
  const copy = (Array.isArray(value) ? [...value] : { ...value }) as Record<string, unknown>
  copy[key] = exchanged(copy[key], rest, by)
  return copy
}

/** As it comes back from JSON. */
function plain(value: unknown): unknown {
  return value === undefined ? null : JSON.parse(JSON.stringify(value))
}

/** Everything that reads such state answers, with valid times only. */
async function allIsShown(holdfast: Holdfast): Promise<void> {
  const { id } = await holdfast.queue('mail').enqueue(2)
  const schedules = await holdfast.schedules()
  assert.ok(schedules.length >= 2)
  const shown = [schedules, await holdfast.workers(), await holdfast.gates(), await holdfast.explain(id)]
  const pickups = await Array.fromAsync(holdfast.inbox('extracted'))
  assert.ok(pickups.length >= 1)
  for (const date of datesIn([shown, pickups])) assert.ok(!Number.isNaN(date.getTime()), 'an invalid time')
  assert.ok((await holdfast.doctor()).length > 0)
}

function datesIn(value: unknown): Date[] {
  if (value instanceof Date) return [value]
  return typeof value === 'object' && value !== null ? Object.values(value).flatMap(datesIn) : []
}
