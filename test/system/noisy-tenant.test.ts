// Fairness between limit keys, one of which has a hundred thousand jobs.
import assert from 'node:assert/strict'
import test from 'node:test'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne } from '../conformance/expect.ts'
import { jobsFile } from '../sqlite/jobs-file.ts'
import { testDatabase } from '../support/postgres.ts'
import { onlyLong } from '../support/system.ts'

const skip = onlyLong('enqueues 100,000 jobs')
const claimsMax = 5
const mail = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 2 } })
const stores = { SQLite: jobsFile, PostgreSQL: testDatabase }

for (const [name, place] of Object.entries(stores)) {
  test(`on ${name}, one tenant with 100,000 jobs delays the single job of another by a few claims`, {
    skip,
  }, async (t) => {
    await using database = await place()
    await using holdfast = await open(database.url)
    const queue = holdfast.queue(mail)
    const noisy = Array.from({ length: 1_000 }, () => ({ payload: { tenant: 'noisy' } }))
    for (let n = 0; n < 100; n++) await queue.enqueueMany(noisy)
    await queue.enqueue({ tenant: 'quiet' })
    const served: string[] = []
    while (served.at(-1) !== 'quiet' && served.length < claimsMax) {
      const lease = await claimOne(holdfast, mail)
      served.push((lease.job.payload as { tenant: string }).tenant)
      await lease.done()
    }
    t.diagnostic(`served: ${served.join(', ')}`)
    assert.equal(served.at(-1), 'quiet')
  })
}
