// Waiting for results: how often the store is asked, and about which jobs.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Results } from '../../src/client/results.ts'
import type { JobOutcome } from '../../src/job/record.ts'

const done: JobOutcome = { state: 'done', attempts: 1, result: '1', error: null }

function setup() {
  const asked: (readonly string[])[] = []
  const ended = new Map<string, JobOutcome>()
  const results = new Results(async (ids) => {
    asked.push(ids)
    return ids.map((id) => ended.get(id) ?? 'live')
  })
  return { results, asked, ended }
}

test('a hint for the job causes a look at once, and a hint for another job does not', async () => {
  const { results, asked, ended } = setup()
  const waiting = results.wait('a', 60_000)
  await sleep(1_000) // the pause between looks is now some 200 ms
  ended.set('a', done)
  const before = asked.length
  results.hint('b')
  assert.equal(asked.length, before)
  results.hint('a')
  assert.equal(asked.length, before + 1)
  assert.equal(await waiting, done)
})

test('all waits share one call, with each id once, and the looks become rarer', async () => {
  const { results, asked, ended } = setup()
  const waiting = ['a', 'b', 'a', 'c'].map((id) => results.wait(id, 60_000))
  await sleep(600)
  assert.deepEqual(asked.at(-1), ['a', 'b', 'c'])
  assert.ok(asked.length < 30, `${asked.length} looks in 600 ms`)
  for (const id of ['a', 'b', 'c']) ended.set(id, done)
  results.hint('a')
  assert.deepEqual(await Promise.all(waiting), [done, done, done, done])
  assert.equal(results.size, 0)
})
