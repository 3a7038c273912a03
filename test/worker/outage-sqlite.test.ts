// Another process locks the SQLite file for longer than a worker waits for it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { recount } from '../conformance/world.ts'
import { jobsFile } from '../sqlite/jobs-file.ts'
import { endingsOf, enqueue, idsOf, jobsOf } from './processes.ts'
import { WorkerProcess } from './worker-process.ts'

test('a worker survives a foreign lock on the file, reports it once, and settles what ended meanwhile', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const options = { lease: '30s', concurrency: 5, busyTimeout: 200 } as const
  await using worker = await WorkerProcess.start(file.url, 'worker', options)
  const running = await enqueue(holdfast, 5, { do: 'waitForGo' })
  await worker.until(() => worker.began.length === running.length)
  const waiting = await enqueue(holdfast, 5, { do: 'work' })
  const stranger = file.raw()
  stranger.exec('begin immediate')
  worker.go()
  await worker.happened('store.down', 1)
  stranger.exec('rollback')
  const ids = [...running, ...waiting]
  await worker.happened('job.done', ids.length)
  assert.deepEqual(idsOf(worker.began), ids.toSorted(), 'each ran once')
  for (const job of await jobsOf(holdfast, ids)) assert.deepEqual(endingsOf(job), ['worker done'])
  assert.deepEqual([worker.events('store.down').length, worker.events('store.up').length], [1, 1])
  await recount(holdfast)
})
