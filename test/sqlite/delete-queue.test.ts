// A queue that is deleted while another process has defined it.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { queueInfo } from '../conformance/expect.ts'
import { scratchDirectory } from '../support/scratch.ts'

test('a deleted queue that is made anew by name gets its definition back with the next sweep of a process that has it', async () => {
  await using scratch = await scratchDirectory()
  const url = `sqlite:${join(scratch.path, 'jobs.db')}`
  await using worker = await open(url)
  await using producer = await open(url)
  const mail = worker.queue(defineQueue('mail', { limit: { concurrency: 1 } }))
  await mail.enqueue(1)
  assert.equal((await queueInfo(worker, 'mail')).limit?.concurrency, 1)
  await producer.deleteQueue('mail', { withJobs: true })
  await producer.queue('mail').enqueue(2)
  assert.equal((await queueInfo(producer, 'mail')).limit, null)
  await worker.sweep()
  assert.equal((await queueInfo(producer, 'mail')).limit?.concurrency, 1)
})
