// The page of benchmarks is generated from the stored results, and from nothing else.
import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import test, { describe } from 'node:test'
import { charts } from '../../bench/peers/charts.ts'
import type { ContenderName } from '../../bench/peers/contenders.ts'
import { page } from '../../bench/peers/page.ts'
import { type Result, readResults } from '../../bench/peers/results.ts'
import { root } from '../support/checkout.ts'

const resultsDirectory = join(root, 'bench/results')
const skip = existsSync(resultsDirectory) ? false : 'there are no results yet; npm run bench -- peers writes them'
const remake = 'npm run bench -- peers --page writes it'

test('the page and its charts show the stored results', { skip }, () => {
  const results = readResults(resultsDirectory)
  assert.equal(readFileSync(join(root, 'docs/benchmarks.md'), 'utf8'), page(results), remake)
  const drawn = charts(results)
  const files = readdirSync(join(root, 'docs/benchmarks')).sort()
  assert.deepEqual(
    files,
    Object.keys(drawn)
      .map((name) => `${name}.svg`)
      .sort(),
  )
  for (const [name, chart] of Object.entries(drawn))
    assert.equal(readFileSync(join(root, 'docs/benchmarks', `${name}.svg`), 'utf8'), chart, remake)
})

test('no result is from a quick run', { skip }, () => {
  const results = Object.values(readResults(resultsDirectory))
  assert.deepEqual(
    results.filter(({ isQuick }) => isQuick).map(({ workload }) => workload),
    [],
  )
})

describe('the page', () => {
  test('says where a peer is ahead, and by how much', () => {
    const text = page({ single: singleResult({ postgres: [10_000, 12_000, 11_000], 'bullmq-always': [20_000] }) })
    assert.match(
      text,
      /Single enqueue, jobs\/s\*\*: BullMQ, fsync always has 20\.0k jobs\/s, Holdfast on PostgreSQL 11\.0k jobs\/s/,
    )
  })

  test('shows the spread of the rounds, except as a share of zero', () => {
    const text = page({ single: singleResult({ postgres: [10_000, 12_000, 11_000], graphile: [0, 0, 0] }) })
    assert.match(text, /\| 11\.0k ± 9 % \|/)
    assert.doesNotMatch(text, /± (NaN|Infinity)/)
  })

  test('says if no peer is ahead', () => {
    const text = page({ single: singleResult({ postgres: [30_000], 'bullmq-always': [20_000] }) })
    assert.match(text, /No peer is ahead of Holdfast/)
  })

  test('says which results were measured on another machine than the rest', () => {
    const single = singleResult({ postgres: [30_000] })
    const others = (['cycle', 'backlog'] as const).map((workload) => [workload, { ...single, workload }] as const)
    const here = page({ single, ...Object.fromEntries(others) })
    assert.doesNotMatch(here, /another machine than the rest/)
    const moved = { ...single, machine: { ...single.machine, cpu: 'a slow one' } }
    const text = page({ single: moved, ...Object.fromEntries(others) })
    assert.match(
      text,
      /## Single enqueue[^#]*Measured on another machine than the rest, on 2000-01-01: a slow one, 2 cores/,
    )
    assert.match(text, /## Machine and versions\n\n- a processor, 2 cores/)
    assert.equal(text.match(/another machine than the rest/g)?.length, 1)
  })

  test('marks a missed target', () => {
    const text = page({ single: singleResult({ postgres: [30_000], 'bullmq-always': [20_000], graphile: [1_000] }) })
    assert.match(text, /\| single enqueue: PostgreSQL to BullMQ \| at least 2 \| 1\.50 \| \*\*missed\*\* \|/)
    assert.match(text, /\| single enqueue: PostgreSQL to the fastest peer on it \| at least 20 \| 30\.00 \| met \|/)
  })
})

test('a chart has a bar for every contender, and the span of the rounds', () => {
  const { single } = charts({ single: singleResult({ postgres: [10_000, 12_000, 11_000], graphile: [1_000] }) })
  assert.equal(single?.match(/<rect class="filled/g)?.length, 2)
  assert.equal(single?.match(/class="span"/g)?.length, 1)
})

function singleResult(rates: Partial<Record<ContenderName, readonly number[]>>): Result {
  return {
    workload: 'single',
    takenAt: '2000-01-01T00:00:00.000Z',
    isQuick: false,
    machine: { cpu: 'a processor', cores: 2, memoryGiB: 1, node: 'v24.0.0', sqlite: '3.0.0', isInMemory: false },
    versions: { Node: '24.0.0' },
    server: { fsync: 'on' },
    sizes: {
      rounds: 3,
      jobs: 1,
      singleMs: 1,
      cycleMs: 1,
      samples: 1,
      backlog: 1,
      heldMs: 1,
      recoveries: 1,
      recoveryMaxMs: 1,
    },
    contenders: Object.keys(rates) as ContenderName[],
    rounds: { rate: rates },
    without: null,
  }
}
