// A server with a full disk. It refuses writes, or crashes and cannot recover until there is space. Either way no answered write
// is lost, no job loses an attempt, and work goes on without help.
import assert from 'node:assert/strict'
import { appendFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { allJobs, rejects } from '../conformance/expect.ts'
import { Scene } from '../faults/scene.ts'
import { startServer } from '../support/postgres.ts'
import { onlyLong } from '../support/system.ts'

const diskMb = 160
const isRoot = process.getuid?.() === 0
const skip = onlyLong('fills a disk and waits') || (!isRoot && 'only root can mount a small disk')

test('a full disk costs nothing but time', { skip }, async (t) => {
  await using server = await startServer({ diskMb, settings: { max_wal_size: '48MB', min_wal_size: '32MB' } })
  await using scene = await Scene.start({ store: { url: server.url() } })
  const ballast = join(server.dataDirectory, 'ballast')
  fill(ballast)
  await scene.untilAllEmit('store.down', 1)
  const large = 'x'.repeat(500_000)
  await rejects(scene.holdfast.queue('large').enqueue(large), 'STORE_UNAVAILABLE')
  await sleep(2_000)
  rmSync(ballast)
  const crashed = !server.isRunning
  if (crashed) await server.start() // as an operator does
  const tookMs = await scene.resumed()
  t.diagnostic(`the server ${crashed ? 'crashed' : 'refused'}; every worker went on within ${tookMs.toFixed()} ms`)
  await scene.judge(t)
  const charged = (await allJobs(scene.holdfast, { queue: 'tasks' })).filter(({ history }) =>
    history.some(({ ending }) => ending === 'failed'),
  )
  assert.deepEqual(charged, [])
})

/** Writes until the disk is full. */
function fill(path: string): void {
  for (const bytes of [1_000_000, 4_096]) {
    try {
      for (;;) appendFileSync(path, Buffer.alloc(bytes))
    } catch (error) {
      assert.equal((error as NodeJS.ErrnoException).code, 'ENOSPC')
    }
  }
}
