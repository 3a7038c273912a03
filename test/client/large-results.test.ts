// Callers that wait for many large results: what the store answers at once is bounded.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bounds } from '../../src/job/bounds.ts'
import { type MakeSharedStore, postgresSharedStore, sqliteSharedStore } from '../worker/shared-store.ts'

const stores: Readonly<Record<string, MakeSharedStore>> = { SQLite: sqliteSharedStore, PostgreSQL: postgresSharedStore }

for (const [store, makeSharedStore] of Object.entries(stores))
  test(`on ${store} 100 results of 1 MiB reach the callers that wait for them, in another client`, async () => {
    await using sharedStore = await makeSharedStore()
    const [producer, consumer] = [await sharedStore.open(), await sharedStore.open()]
    const jobs = Array.from({ length: 100 }, (_, n) => ({ payload: n }))
    const enqueued = await producer.queue('large').enqueueMany(jobs)
    const leases = await consumer.claim(['large'], { max: jobs.length })
    const result = (n: number) => `${n}`.padEnd(bounds.resultBytes - 2, 'x')
    await Promise.all(leases.map((lease) => lease.done(result(lease.job.payload as number))))
    const results = await Promise.all(enqueued.map(({ id }) => producer.result(id)))
    for (const [n, got] of results.entries()) assert.ok(got === result(n), `the result of job ${n}`)
  })
