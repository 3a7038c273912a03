// The times of slots: at clock changes, on leap days, and equal when computed forwards and backwards.
import assert from 'node:assert/strict'
import test from 'node:test'
import { checkCron, slotTimes } from '../../src/schedule/cron.ts'

test('a slot in the skipped hour of a clock change fires once, right after it', () => {
  assert.deepEqual(slots('30 2 * * *', 'Europe/Berlin', '2026-03-27T12:00Z', 3), [
    '2026-03-28T01:30:00.000Z',
    '2026-03-29T01:00:00.000Z', // 03:00, in place of 02:00
    '2026-03-30T00:30:00.000Z',
  ])
})

test('a slot in the repeated hour of a clock change fires once, the first time', () => {
  assert.deepEqual(slots('30 2 * * *', 'Europe/Berlin', '2026-10-24T12:00Z', 2), [
    '2026-10-25T00:30:00.000Z',
    '2026-10-26T01:30:00.000Z',
  ])
})

test('slots of every hour also fire in the repeated hour', () => {
  assert.deepEqual(slots('*/30 * * * *', 'Europe/Berlin', '2026-10-24T23:45Z', 5), [
    '2026-10-25T00:00:00.000Z',
    '2026-10-25T00:30:00.000Z',
    '2026-10-25T01:00:00.000Z',
    '2026-10-25T01:30:00.000Z',
    '2026-10-25T02:00:00.000Z',
  ])
})

test('a slot on the 29th of February fires in leap years', () => {
  assert.deepEqual(slots('0 0 29 2 *', 'UTC', '2026-01-01T00:00Z', 2), [
    '2028-02-29T00:00:00.000Z',
    '2032-02-29T00:00:00.000Z',
  ])
  assert.deepEqual(slots('0 0 L 2 *', 'UTC', '2026-01-01T00:00Z', 3), [
    '2026-02-28T00:00:00.000Z',
    '2027-02-28T00:00:00.000Z',
    '2028-02-29T00:00:00.000Z',
  ])
})

test('the slots are the same when computed forwards, backwards, and from any moment', () => {
  const hour = 3_600_000
  const crons = [
    '30 2 * * *',
    '*/30 * * * *',
    '0 * * * *',
    '15 1,2,3 * * *',
    '*/7 * * * * *',
    '0 0 L * *',
    '30 1 * * 0',
  ]
  const zones = ['Europe/Berlin', 'America/New_York', 'Australia/Lord_Howe', 'UTC']
  const moved = ['2026-03-08', '2026-03-29', '2026-04-05', '2026-10-04', '2026-10-25', '2026-11-01']
  for (const cron of crons) {
    for (const zone of zones) {
      for (const day of moved) {
        const times = slotTimes(cron, zone)
        const from = Date.parse(`${day}T00:00Z`) - 30 * hour
        const forwards: number[] = []
        for (let slot = times.next(from); slot !== null && slot < from + 60 * hour; slot = times.next(slot)) {
          forwards.push(slot)
          if (forwards.length === 40) break
        }
        const last = forwards.at(-1)
        if (last === undefined) continue
        const what = `${cron} in ${zone} around ${day}`
        assert.deepEqual(times.latest(forwards.length, last), forwards, what)
        forwards.forEach((slot, i) => {
          const before = forwards[i - 1] ?? from
          assert.equal(times.next(before + Math.floor((slot - before) / 2)), slot, what)
        })
      }
    }
  }
})

test('a cron expression and a time zone that cannot be read are refused', () => {
  assert.throws(() => checkCron('* * * *', 'UTC'), { code: 'INVALID_OPTION', message: /cannot be parsed/ })
  assert.throws(() => checkCron(7, 'UTC'), { code: 'INVALID_OPTION', message: /got 7/ })
  assert.throws(() => checkCron('* * * * *', null), { code: 'INVALID_OPTION', message: /timeZone .* got null/ })
})

function slots(cron: string, zone: string, from: string, count: number): string[] {
  const found: number[] = []
  while (found.length < count) found.push(slotTimes(cron, zone).next(found.at(-1) ?? Date.parse(from)) as number)
  return found.map((slot) => new Date(slot).toISOString())
}
