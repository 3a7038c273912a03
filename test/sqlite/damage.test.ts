import assert from 'node:assert/strict'
import { test } from 'node:test'
import { jobsFile } from './jobs-file.ts'

for (const column of ['past', 'cancel']) {
  test(`a job whose ${column} was damaged behind the store's back holds up nobody, itself included`, async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
    await holdfast.claim(['mail'], { lease: 1 })
    file.raw().prepare(`update holdfast_job set ${column} = '{oops' where id = ?`).run(id)
    const swept = await holdfast.sweep()
    assert.equal(swept.rescued, 1)
    await holdfast.queue('post').enqueue(2)
    assert.equal((await holdfast.claim(['post'])).length, 1)
    assert.equal((await holdfast.jobs()).jobs.length, 2)
    assert.equal((await holdfast.job(id))?.state, column === 'cancel' ? 'cancelled' : 'ready')
  })
}

test('an error that was damaged is shown as it stands, and the dead are still listed and requeued', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue(1)
  const [lease] = await holdfast.claim(['mail'])
  await lease?.dead(new Error('boom'))
  file.raw().exec(`update holdfast_ended set error = '{oops'`)
  assert.equal((await holdfast.job(id))?.error?.message, '{oops')
  assert.deepEqual(await holdfast.requeueAll({ error: 'oops' }), { requeued: 1, skipped: [] })
})

test('a claim of more than fits a message gives what fits, and the next one the rest', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const payload = 'x'.repeat(1024 * 1024 - 2)
  for (let n = 0; n < 40; n++) await holdfast.queue('mail').enqueue(payload)
  const first = await holdfast.claim(['mail'], { max: 100 })
  const second = await holdfast.claim(['mail'], { max: 100 })
  assert.ok(first.length < 40, `${first.length} at once`)
  assert.equal(first.length + second.length, 40)
  assert.equal(new Set([...first, ...second].map(({ job }) => job.id)).size, 40)
})
