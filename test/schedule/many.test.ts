// Thousands of schedules cost only what their due slots cost. The tests count calls of Croner's parser and search, not time.
import assert from 'node:assert/strict'
import test from 'node:test'
import { Cron, CronPattern } from 'croner'
import { open } from '../../src/open.ts'
import { slotTimes } from '../../src/schedule/cron.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { putReserved } from '../support/reserved-entries.ts'

const minute = 60_000
/** More than the cache of parsed expressions holds. */
const schedulesMany = 1_200

test('a look at thousands of schedules, none of them due, parses and computes nothing', async () => {
  await using world = await setup()
  const { holdfast } = world
  using counted = counting()
  await holdfast.sweep()
  assert.ok(counted.parses <= schedulesMany, `${counted.parses} at the first look`)
  counted.begin()
  for (let look = 0; look < 10; look++) await holdfast.sweep()
  assert.deepEqual([counted.parses, counted.searches], [0, 0])
})

test('a look at thousands of schedules parses and computes only for those that are due', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.sweep()
  using counted = counting()
  world.clock.advance(45 * minute) // before each is declared again, which happens once an hour
  const { fired, skipped } = await holdfast.sweep()
  const due = fired + skipped
  assert.ok(due >= 30 && due <= 100, `${due} were due`)
  assert.ok(counted.parses <= due, `${counted.parses} parsed for ${due} slots`)
  assert.ok(counted.searches <= 4 * due, `${counted.searches} searches for ${due} slots`)
})

test('a list of thousands of schedules parses each of them once', async () => {
  await using world = await setup()
  const { holdfast } = world
  using counted = counting()
  assert.equal((await holdfast.schedules()).length, schedulesMany)
  assert.ok(counted.parses <= schedulesMany, `${counted.parses} parsed`)
})

test('the parsing of an expression is counted once', () => {
  using counted = counting()
  new Cron('1 2 3 4 *', { timezone: 'UTC', paused: true })
  assert.equal(counted.parses, 1)
})

test('an expression in use stays in the cache, however many others are used once', () => {
  slotTimes('7 7 7 7 *', 'UTC')
  using counted = counting()
  for (let i = 0; i < 3_000; i++) {
    slotTimes(cronOf(i), 'UTC')
    counted.pause()
    slotTimes('7 7 7 7 *', 'UTC')
    counted.resume()
  }
  assert.equal(counted.paused, 0, 'parsed again')
  assert.ok(counted.parses <= 3_000)
})

/** Thousands of schedules, copied from the stored form of a declared one. */
async function setup() {
  const clock = new VirtualClock(Date.parse('2030-01-01T12:30:30Z'))
  const holdfast = await open('sqlite::memory:', { clock, logger: false })
  await holdfast.schedule('s0', { cron: cronOf(0), queue: 'q' })
  const stored = await holdfast.kv.get<object>('holdfast.schedule.s0')
  const others = Array.from({ length: schedulesMany - 1 }, (_, i) => i + 1)
  const put = (i: number) => putReserved(holdfast, `holdfast.schedule.s${i}`, { ...stored?.value, cron: cronOf(i) })
  await Promise.all(others.map(put))
  return { ...{ clock, holdfast }, [Symbol.asyncDispose]: () => holdfast.close() }
}

/** A different expression for each number. */
function cronOf(i: number): string {
  return `${i % 60} ${Math.floor(i / 60) % 24} ${1 + (Math.floor(i / 1_440) % 28)} * *`
}

/** Croner parses an expression several times. */
const parsesEach = 2

function counting() {
  const pattern = CronPattern.prototype as unknown as { parse(this: CronPattern): void }
  const [parse, next, previous] = [pattern.parse, Cron.prototype.nextRun, Cron.prototype.previousRuns]
  const counted = {
    parses: 0,
    searches: 0,
    /** Parses while the count was paused. */
    paused: 0,
    isPaused: false,
    begin() {
      counted.parses = 0
      counted.searches = 0
    },
    pause() {
      counted.isPaused = true
    },
    resume() {
      counted.isPaused = false
    },
    [Symbol.dispose]() {
      pattern.parse = parse
      Cron.prototype.nextRun = next
      Cron.prototype.previousRuns = previous
    },
  }
  pattern.parse = function (this: CronPattern) {
    if (counted.isPaused) counted.paused += 1 / parsesEach
    else counted.parses += 1 / parsesEach
    return parse.call(this)
  }
  Cron.prototype.nextRun = function (this: Cron, ...args) {
    counted.searches += 1
    return next.apply(this, args)
  }
  Cron.prototype.previousRuns = function (this: Cron, ...args) {
    counted.searches += 1
    return previous.apply(this, args)
  }
  return counted
}
