// The file, or its log, is deleted, moved or replaced while a store has it open.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { copyFile, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { open } from '../../src/open.ts'
import { claimOne, heard, rejects } from '../conformance/expect.ts'
import { type JobsFile, jobsFile } from './jobs-file.ts'

/** A connection that is not closed leaves its log. */
const writeAndStayOpen = `
  const db = new (require('node:sqlite').DatabaseSync)(process.argv[1])
  db.exec('pragma journal_mode = wal; create table another (a)')
  process.kill(process.pid, 'SIGKILL')`

const ways: Readonly<Record<string, (file: JobsFile) => Promise<void>>> = {
  deleted: ({ path }) => rm(path),
  'replaced by a copy': async ({ path }) => {
    await copyFile(path, `${path}.copy`)
    await rename(`${path}.copy`, path)
  },
  moved: ({ path, directory }) => rename(path, join(directory, 'elsewhere.db')),
  'left without its log': async ({ path }) => {
    await rm(`${path}-wal`)
    await rm(`${path}-shm`)
  },
  'left without the index of its log': ({ path }) => rm(`${path}-shm`),
  'left with the log of another process': async ({ path }) => {
    await rm(`${path}-wal`)
    await rm(`${path}-shm`)
    await assert.rejects(promisify(execFile)(process.execPath, ['-e', writeAndStayOpen, path]), { signal: 'SIGKILL' })
  },
}

/** How often a read, a claim or a renewal looks at the file. */
const lookMs = 1_000

for (const [what, act] of Object.entries(ways)) {
  describe(`once the file was ${what}`, () => {
    test('no enqueue, settlement or put is acknowledged, and the error says what to do', async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      await act(file)
      const calls = [holdfast.queue('mail').enqueue(2), lease.done(), holdfast.kv.put('k', 1)]
      for (const error of await Promise.all(calls.map((call) => rejects(call, 'STORE_UNAVAILABLE')))) {
        assert.match(error.message, /jobs\.db(-wal|-shm)? was deleted, moved or replaced .* Stop every process/)
      }
      await sleep(lookMs + 100)
      await rejects(holdfast.stats(), 'STORE_UNAVAILABLE')
      await rejects(holdfast.claim(['mail']), 'STORE_UNAVAILABLE')
    })

    test('a worker reports store.down, and stops in time', async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      const down = heard(holdfast, 'store.down')
      const started = heard(holdfast, 'worker.started')
      const worker = holdfast.work('mail', () => undefined)
      await started
      await act(file)
      const [{ error } = assert.fail()] = await down
      assert.match(error.message, /deleted, moved or replaced/)
      await worker.stop({ grace: 0, timeout: 200 })
    })
  })
}

test('a file that is moved back is used again', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const aside = join(file.directory, 'aside.db')
  await rename(file.path, aside)
  await rejects(holdfast.queue('mail').enqueue(1), 'STORE_UNAVAILABLE', { mayHaveLanded: true })
  await rename(aside, file.path)
  assert.equal((await holdfast.queue('mail').enqueue(2)).status, 'created')
})

test('another working directory does not hide a file that was opened by a relative path', async () => {
  await using file = await jobsFile()
  const before = process.cwd()
  process.chdir(file.directory)
  try {
    await using holdfast = await open('sqlite:jobs.db')
    process.chdir(before)
    await sleep(lookMs + 100)
    assert.equal((await holdfast.queue('mail').enqueue(1)).status, 'created')
  } finally {
    process.chdir(before)
  }
})
