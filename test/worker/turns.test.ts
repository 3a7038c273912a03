// Which queue is claimed next, tested with queues that are only counts: without a store, and with a clock that the test sets.
//
//   HOLDFAST_TURNS_SEED=1 npm test -- test/worker/turns.test.ts      repeats the run of seed 1
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { type QueueShare, type Turn, Turns } from '../../src/worker/turns.ts'

const seed = Number(process.env['HOLDFAST_TURNS_SEED'] ?? Date.now() % 0x7fffffff)

/** Queues with a number of ready jobs, and a worker that claims from them as `Turns` says. */
class World {
  readonly turns: Turns
  readonly ready = new Map<string, number>()
  readonly running = new Map<string, number>()
  readonly taken = new Map<string, number>()
  now = 0

  constructor(shares: readonly QueueShare[] | null) {
    this.turns = new Turns(shares)
  }

  enqueue(queue: string, count: number): void {
    this.ready.set(queue, (this.ready.get(queue) ?? 0) + count)
    this.turns.woken(queue)
  }

  /** One look with this many free slots; false if there is nothing to claim. */
  look(free: number): boolean {
    const turn = this.turns.next(free, this.now)
    if (turn === 'ask') for (const [queue, ready] of this.ready) if (ready > 0) this.turns.found(queue)
    if (turn !== null && turn !== 'ask') this.claim(turn)
    return turn !== null
  }

  /** Claims queue by queue in the order in which they are named. `meanwhile` happens too late for the claim to see. */
  claim({ queues, max, isSurvey }: Turn, meanwhile: () => void = () => {}): void {
    const claimed: { queue: string }[] = []
    for (const queue of queues) {
      const many = Math.min(max - claimed.length, this.ready.get(queue) ?? 0)
      for (let i = 0; i < many; i++) claimed.push({ queue })
      if (many > 0) count(this.ready, queue, -many)
      count(this.running, queue, many)
      count(this.taken, queue, many)
    }
    meanwhile()
    this.turns.taken({ queues, max, isSurvey }, claimed)
  }

  end(queue: string): void {
    count(this.running, queue, -1)
    this.turns.ended(queue)
  }

  endAll(): void {
    for (const [queue, running] of this.running) for (let i = 0; i < running; i++) this.end(queue)
  }

  /** This many looks, each with all slots free. */
  work(looks: number, free: number): void {
    for (let i = 0; i < looks; i++) {
      this.now += 1
      this.look(free)
      this.endAll()
    }
  }

  takenOf(queue: string): number {
    return this.taken.get(queue) ?? 0
  }
}

function count(counts: Map<string, number>, queue: string, by: number): void {
  counts.set(queue, (counts.get(queue) ?? 0) + by)
}

function share(name: string, options: Partial<QueueShare> = {}): QueueShare {
  return { name, weight: 1, limit: Number.POSITIVE_INFINITY, ...options }
}

test('busy queues are served in proportion to their weights, for any weights and number of slots', (t) => {
  t.diagnostic(`HOLDFAST_TURNS_SEED=${seed}`)
  const weights = fc.array(fc.integer({ min: 1, max: 50 }), { minLength: 2, maxLength: 8 })
  const property = fc.property(weights, fc.integer({ min: 1, max: 40 }), (drawn, free) => {
    const world = new World(drawn.map((weight, i) => share(String(i), { weight })))
    for (const i of drawn.keys()) world.enqueue(String(i), 10_000_000)
    world.work(2_000, free)
    const all = [...world.taken.values()].reduce((sum, each) => sum + each, 0)
    const sum = drawn.reduce((total, weight) => total + weight, 0)
    for (const [i, weight] of drawn.entries()) {
      const expected = (all * weight) / sum
      const deviation = Math.abs(world.takenOf(String(i)) - expected)
      assert.ok(deviation <= 2 * free + sum, `queue ${i} of weights ${drawn}: off by ${deviation} of ${expected}`)
    }
  })
  fc.assert(property, { seed, numRuns: 50 })
})

test('a backlog in one queue does not delay a queue that comes later', () => {
  const world = new World([share('backlog'), share('late')])
  world.enqueue('backlog', 1_000_000)
  world.work(1_000, 10)
  world.enqueue('late', 1_000)
  world.work(20, 10)
  assert.ok(world.takenOf('late') >= 40, `${world.takenOf('late')} were taken`)
})

test('what a queue claimed while it was alone is no debt later', () => {
  const world = new World([share('a'), share('b')])
  world.enqueue('a', 100_000)
  world.work(20_000, 10)
  assert.equal(world.ready.get('a'), 0)
  world.enqueue('b', 1_000_000)
  world.work(10, 10)
  world.enqueue('a', 1_000)
  const before = world.takenOf('a')
  world.work(20, 10)
  assert.ok(world.takenOf('a') - before >= 40, `${world.takenOf('a') - before} were taken`)
})

test('a single queue gets exactly all free slots, whatever its weight', () => {
  const turns = new Turns([share('mail', { weight: 13.131675883708684 }), share('post')])
  turns.next(3, 0) // the survey
  turns.woken('mail')
  assert.deepEqual(turns.next(3, 1), { queues: ['mail'], max: 3, isSurvey: false })
})

test('idle time earns no credit: a queue that was idle shares the slots, and does not take all', () => {
  const world = new World([share('busy'), share('idle')])
  world.enqueue('busy', 1_000_000)
  world.work(10_000, 10)
  world.enqueue('idle', 1_000_000)
  const before = world.takenOf('busy')
  world.work(20, 10)
  assert.ok(world.takenOf('busy') - before >= 40)
})

test('a queue at its own limit earns no credit either, and gives none to a queue that comes later', () => {
  const world = new World([share('slow', { limit: 1 }), share('busy'), share('new')])
  world.enqueue('slow', 1_000_000)
  world.enqueue('busy', 1_000_000)
  world.work(2, 10)
  // One job of `slow` keeps running, at the limit of its queue.
  while (world.running.get('slow') !== 1) world.look(10)
  for (let i = 0; i < 10_000; i++) {
    world.now += 1
    world.look(5)
    for (let left = world.running.get('busy') ?? 0; left > 0; left--) world.end('busy')
  }
  world.enqueue('new', 1_000_000)
  const before = world.takenOf('busy')
  for (let i = 0; i < 20; i++) {
    world.now += 1
    world.look(6)
    for (const queue of ['busy', 'new'])
      for (let left = world.running.get(queue) ?? 0; left > 0; left--) world.end(queue)
  }
  assert.ok(world.takenOf('busy') - before >= 20, `${world.takenOf('busy') - before} were taken`)
})

test('jobs that become ready during a claim are not forgotten', () => {
  const turns = new Turns([share('mail')])
  turns.woken('mail')
  turns.taken(turns.next(5, 0) as Turn, []) // the survey or the claim, whichever came first
  turns.woken('mail')
  const turn = turns.next(5, 1) as Turn
  turns.woken('mail') // the claim may have read before this
  turns.taken(turn, [])
  assert.deepEqual(turns.next(5, 2), { queues: ['mail'], max: 5, isSurvey: false })
})

test('a claim that returns less than it asked for ends the turn of its queue, until a wake-up', () => {
  const turns = new Turns([share('mail')])
  const survey = turns.next(5, 0) as Turn
  assert.deepEqual(survey, { queues: ['mail'], max: 5, isSurvey: true })
  turns.taken(survey, [{ queue: 'mail' }])
  assert.equal(turns.next(4, 1), null)
  assert.equal(turns.hasWork('mail'), false)
  turns.woken('mail')
  assert.equal(turns.hasWork('mail'), true)
  assert.deepEqual(turns.next(4, 2), { queues: ['mail'], max: 4, isSurvey: false })
})

test('work without a wake-up is found at the start, after a quiet second, and once a second beside a busy queue', () => {
  const world = new World([share('busy'), share('quiet')])
  world.ready.set('quiet', 1)
  world.work(1, 10)
  assert.equal(world.takenOf('quiet'), 1)
  world.ready.set('quiet', 1)
  world.work(5, 10)
  assert.equal(world.takenOf('quiet'), 1)
  world.turns.surveySoon()
  world.work(1, 10)
  assert.equal(world.takenOf('quiet'), 2)
  world.enqueue('busy', 1_000_000)
  world.ready.set('quiet', 1)
  world.work(1_000, 1)
  assert.equal(world.takenOf('quiet'), 3)
})

test('a survey that some queues fill is followed by another at once, so that the others are claimed from too', () => {
  const world = new World([share('a'), share('b'), share('c')])
  for (const queue of ['a', 'b', 'c']) world.ready.set(queue, 1_000)
  world.work(6, 4)
  assert.ok(
    ['a', 'b', 'c'].every((queue) => world.takenOf(queue) > 0),
    String([...world.taken]),
  )
})

test('a worker for every queue asks which queues have work, shares its slots, and remembers few idle queues', () => {
  const world = new World(null)
  assert.equal(world.turns.next(1, 0), 'ask')
  for (let i = 0; i < 2_000; i++) world.ready.set(`q${i}`, 1)
  world.work(6_000, 1)
  assert.equal(world.taken.size, 2_000)
  assert.ok(world.turns.size <= 1_001, `${world.turns.size} are remembered`)
  world.enqueue('q1', 1)
  world.work(2, 1)
  assert.equal(world.takenOf('q1'), 2)
})

test('wake-ups of unknown queues are remembered up to a bound, and real work is still found', () => {
  const world = new World(null)
  for (let i = 0; i < 100_000; i++) world.turns.woken(`forged${i}`)
  assert.ok(world.turns.size <= 1_000, `${world.turns.size} are remembered`)
  world.enqueue('real', 1)
  world.now += 1_000
  world.work(1_100, 1)
  assert.equal(world.takenOf('real'), 1)
  for (let i = 0; i < 100_000; i++) world.turns.woken(`again${i}`)
  assert.ok(world.turns.size <= 1_000, `${world.turns.size} are remembered`)
})

test('in any sequence of steps no queue exceeds its limit, no claim the free slots, and in the end every job is claimed', (t) => {
  t.diagnostic(`HOLDFAST_TURNS_SEED=${seed}`)
  const queue = fc.record({
    weight: fc.double({ min: 0.01, max: 100, noNaN: true }),
    limit: fc.integer({ min: 1, max: 6 }),
  })
  const step = fc.oneof(
    fc.record({ do: fc.constant('enqueue' as const), at: fc.nat(4), many: fc.integer({ min: 1, max: 12 }) }),
    fc.record({ do: fc.constant('enqueue unheard' as const), at: fc.nat(4), many: fc.integer({ min: 1, max: 3 }) }),
    fc.record({
      do: fc.constant('enqueue during a claim' as const),
      at: fc.nat(4),
      many: fc.integer({ min: 1, max: 3 }),
    }),
    fc.record({ do: fc.constant('look' as const) }),
    fc.record({ do: fc.constant('end' as const), at: fc.nat(4) }),
    fc.record({ do: fc.constant('wait' as const), ms: fc.integer({ min: 1, max: 2_000 }) }),
  )
  const property = fc.property(
    fc.array(queue, { minLength: 1, maxLength: 5 }),
    fc.integer({ min: 1, max: 10 }),
    fc.array(step, { maxLength: 80 }),
    (queues, places, steps) => {
      const shares = queues.map((each, i) => share(String(i), each))
      const world = new World(shares)
      const free = () => places - [...world.running.values()].reduce((sum, each) => sum + each, 0)
      const check = () => {
        for (const { name, limit } of shares) {
          const running = world.running.get(name) ?? 0
          assert.ok(running >= 0 && running <= limit, `${running} run of queue ${name}, whose limit is ${limit}`)
        }
        assert.ok(free() >= 0, `${-free()} more run than there are slots`)
      }
      for (const each of steps) {
        const name = String('at' in each ? each.at % queues.length : 0)
        if (each.do === 'enqueue') world.enqueue(name, each.many)
        else if (each.do === 'enqueue unheard') count(world.ready, name, each.many)
        else if (each.do === 'end') {
          if ((world.running.get(name) ?? 0) > 0) world.end(name)
        } else if (each.do === 'wait') world.now += each.ms
        else {
          const turn = world.turns.next(free(), world.now)
          if (turn && turn !== 'ask') {
            assert.ok(turn.max >= 1 && turn.max <= free() && new Set(turn.queues).size === turn.queues.length)
            world.claim(turn, () => {
              if (each.do === 'enqueue during a claim') world.enqueue(name, each.many)
            })
          }
        }
        check()
      }
      // From here on all jobs end at once, and whenever there is nothing to claim, a quiet second passes.
      const isLeft = () => [...world.ready.values()].some((ready) => ready > 0)
      for (let looks = 0; isLeft() && looks < 10_000; looks++) {
        world.endAll()
        if (!world.look(free())) {
          world.now += 1_000
          world.turns.surveySoon()
        }
        check()
      }
      assert.ok(!isLeft(), `left: ${[...world.ready]}`)
    },
  )
  fc.assert(property, { seed, numRuns: 300 })
})
