// The application's event loop never waits for the disk, nor for another process that writes.
import assert from 'node:assert/strict'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import test from 'node:test'
import { setTimeout as after } from 'node:timers/promises'
import { readJob } from '../conformance/expect.ts'
import { jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'

const heldMs = 300

test('while another connection has locked the file the event loop goes on, and the call then succeeds', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueue('first')
  const [lease] = await holdfast.claim(['mail'])
  assert.ok(lease)
  const other = file.raw()
  other.exec('begin immediate')
  let answered = 0
  const calls = [
    holdfast.queue('mail').enqueue('second'),
    lease.renew(),
    holdfast.kv.put('k', 1),
    holdfast.claim(['post']),
  ].map((call) => call.finally(() => answered++))
  const turns = await turnsWithin(heldMs)
  assert.equal(answered, 0, 'no call is answered before its write')
  other.exec('commit')
  await Promise.all(calls)
  assert.equal((await lease.done()).state, 'done')
  assert.ok(turns >= heldMs / 20, `${turns} turns of the event loop in ${heldMs} ms`)
  assertCountsEqualRecount(other)
})

test('a read is not delayed by a long read of another connection', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue('first')
  const other = file.raw()
  other.exec('begin')
  other.prepare('select count(*) from holdfast_job').get()
  const { id: second } = await holdfast.queue('mail').enqueue('second')
  assert.deepEqual([(await readJob(holdfast, id)).state, (await readJob(holdfast, second)).state], ['ready', 'ready'])
  assert.equal((await holdfast.claim(['mail'], { max: 2 })).length, 2)
  other.exec('commit')
})

test('enqueues and settlements at full speed leave the event loop free', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const delay = monitorEventLoopDelay({ resolution: 5 })
  delay.enable()
  const until = performance.now() + 1_000
  const lanes = Array.from({ length: 8 }, async (_, lane) => {
    for (let n = 0; performance.now() < until; n++) {
      await holdfast.queue('mail').enqueue({ lane, n })
      const [lease] = await holdfast.claim(['mail'])
      await lease?.done()
    }
  })
  await Promise.all(lanes)
  delay.disable()
  const p90 = delay.percentile(90) / 1e6
  assert.ok(p90 < 50, `the event loop was late by ${p90.toFixed(1)} ms at p90`)
  assertCountsEqualRecount(file.raw())
})

async function turnsWithin(ms: number): Promise<number> {
  let turns = 0
  const timer = setInterval(() => turns++, 5)
  await after(ms)
  clearInterval(timer)
  return turns
}
