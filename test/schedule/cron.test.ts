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

test('lists, ranges and steps of hours follow the same rule', () => {
  const spring = '2026-03-28T12:00Z'
  const autumn = '2026-10-24T12:00Z'
  const inBerlin = (cron: string, from: string, count: number) => slots(cron, 'Europe/Berlin', from, count)
  assert.deepEqual(inBerlin('30 2,14 * * *', spring, 3), [
    '2026-03-28T13:30:00.000Z',
    '2026-03-29T01:00:00.000Z',
    '2026-03-29T12:30:00.000Z',
  ])
  assert.deepEqual(inBerlin('30 2,14 * * *', autumn, 3), [
    '2026-10-24T12:30:00.000Z',
    '2026-10-25T00:30:00.000Z',
    '2026-10-25T13:30:00.000Z',
  ])
  assert.deepEqual(inBerlin('0,30 2 * * *', spring, 2), ['2026-03-29T01:00:00.000Z', '2026-03-30T00:00:00.000Z'])
  assert.deepEqual(inBerlin('0,30 2 * * *', autumn, 3), [
    '2026-10-25T00:00:00.000Z',
    '2026-10-25T00:30:00.000Z',
    '2026-10-26T01:00:00.000Z',
  ])
  assert.deepEqual(inBerlin('15 1-3 * * *', spring, 3), [
    '2026-03-29T00:15:00.000Z',
    '2026-03-29T01:00:00.000Z',
    '2026-03-29T01:15:00.000Z',
  ])
  assert.deepEqual(inBerlin('15 */2 * * *', autumn, 8).slice(5), [
    '2026-10-24T22:15:00.000Z',
    '2026-10-25T00:15:00.000Z',
    '2026-10-25T03:15:00.000Z',
  ])
})

test('slots of all hours are every moment at which the wall matches, those of named hours each wall time once', () => {
  const stepMs = 15 * 60_000 // no clock is moved in between
  for (const zone of ['Europe/Berlin', 'America/New_York', 'Australia/Lord_Howe', 'Antarctica/Troll', 'Asia/Tehran']) {
    const wall = new Intl.DateTimeFormat('en-GB', {
      hour: '2-digit',
      minute: '2-digit',
      day: '2-digit',
      timeZone: zone,
    })
    for (const day of ['2026-03-08', '2026-03-29', '2026-04-05', '2026-10-04', '2026-10-25', '2026-11-01']) {
      const from = Date.parse(`${day}T00:00Z`) - 96 * stepMs
      const moments = Array.from({ length: 192 }, (_, i) => from + i * stepMs)
      const isQuarter = (moment: number) => /[:](00|15|30|45)$/.test(wall.format(moment))
      assert.deepEqual(between('*/15 * * * *', zone, moments), moments.filter(isQuarter), `${zone} ${day}`)
      const shown = new Set<string>()
      const isFirst = (moment: number) => shown.size < shown.add(wall.format(moment)).size
      const firsts = moments.filter(isFirst).filter(isQuarter)
      const skippedTo = moments.filter((moment) => jump(wall, moment, stepMs) > stepMs)
      const expected = [...new Set([...firsts, ...skippedTo])].sort((a, b) => a - b)
      assert.deepEqual(
        between('*/15 0,1,2,3,4-23/1,5 * * *', zone, moments),
        moments.filter(isQuarter),
        `${zone} ${day}`,
      )
      assert.deepEqual(
        between('*/15 0-22 * * *', zone, moments),
        expected.filter((moment) => !/23:\d\d$/.test(wall.format(moment))),
        `${zone} ${day}`,
      )
    }
  }
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

/** Slots from the first to the last of these moments. */
function between(cron: string, zone: string, moments: readonly number[]): number[] {
  const found: number[] = []
  const [first = 0, last = 0] = [moments[0], moments.at(-1)]
  for (
    let slot = slotTimes(cron, zone).next(first - 1);
    slot !== null && slot <= last;
    slot = slotTimes(cron, zone).next(slot)
  ) {
    found.push(slot)
  }
  return found
}

/** How far the wall moves in so many milliseconds before this moment. */
function jump(wall: Intl.DateTimeFormat, moment: number, ms: number): number {
  const shownAt = (at: number) => {
    const [day = 0, hour = 0, minutes = 0] = (wall.format(at).match(/\d+/g) ?? []).map(Number)
    return ((day * 24 + hour) * 60 + minutes) * 60_000
  }
  return shownAt(moment) - shownAt(moment - ms)
}

function slots(cron: string, zone: string, from: string, count: number): string[] {
  const found: number[] = []
  while (found.length < count) found.push(slotTimes(cron, zone).next(found.at(-1) ?? Date.parse(from)) as number)
  return found.map((slot) => new Date(slot).toISOString())
}

test('an expression that cannot be parsed is answered with the field that is wrong and what it allows', () => {
  const cases: readonly (readonly [string, RegExp])[] = [
    ['60 * * * *', /its minute is "60"; allowed are 0 to 59, /],
    ['60 * * * * *', /its second is "60"; allowed are 0 to 59, /],
    ['0 24 * * *', /its hour is "24"; allowed are 0 to 23, /],
    ['0 0 32 * *', /its day of the month is "32"; allowed are 1 to 31, L /],
    ['0 0 * 13 *', /its month is "13"; allowed are 1 to 12, JAN to DEC, /],
    ['0 0 * * 5#6', /its day of the week is "5#6"; allowed are 0 to 7 .*5#2 /],
    ['*/0 * * * *', /its minute is "\*\/0"; /],
    ['* * *', /it has 3 fields; allowed are five fields \(minute first\), six \(second first\), or @hourly, /],
    ['0 0 0 1 1 * 2030', /it has 7 fields; allowed are five /],
    ['* * * * * * *', /it has 7 fields; allowed are five /],
    ['@dialy', /it has 1 field; allowed are five .* @daily, /],
  ]
  for (const [cron, message] of cases) {
    assert.throws(() => checkCron(cron, 'UTC'), { code: 'INVALID_OPTION', message })
  }
})

test('L is the last day of the month, 5L its last Friday, 5#2 its second Friday', () => {
  assert.deepEqual(slots('0 0 L * *', 'UTC', '2026-02-01T12:00Z', 1), ['2026-02-28T00:00:00.000Z'])
  assert.deepEqual(slots('0 0 * * 5L', 'UTC', '2026-02-01T12:00Z', 1), ['2026-02-27T00:00:00.000Z'])
  assert.deepEqual(slots('0 0 * * 5#2', 'UTC', '2026-02-01T12:00Z', 1), ['2026-02-13T00:00:00.000Z'])
})
