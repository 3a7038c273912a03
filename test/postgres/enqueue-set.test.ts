// Jobs with keys are stored as a set. The function that stores them one by one is dropped, so a call that needs it fails.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { inWorld, useDatabase } from './world.ts'

useDatabase()

const dropOneByOne = `do $$ declare v_function regprocedure;
begin
  for v_function in select p.oid from pg_proc p
                     where p.pronamespace = 'holdfast'::regnamespace and p.proname = 'enqueue_job' loop
    execute 'drop function ' || v_function;
  end loop;
end $$`

test(
  'jobs with dedup and idempotency keys are stored as a set, and found to be duplicates as a set',
  inWorld(async (world) => {
    await world.rows(dropOneByOne.replace(`'holdfast'`, `'"${world.schema.name}"'`))
    const queue = world.holdfast.queue<number>('mail')
    const jobs = Array.from({ length: 300 }, (_, i) => ({
      payload: i,
      ...(i % 3 !== 0 && { dedup: { key: `k${i}` } }),
      ...(i % 3 !== 1 && { idempotencyKey: `i${i}` }),
    }))
    const first = await queue.enqueueMany(jobs)
    assert.deepEqual([...new Set(first.map(({ status }) => status))], ['created'])
    const second = await queue.enqueueMany(jobs)
    assert.deepEqual(
      second,
      first.map(({ id }) => ({ id, status: 'duplicate' })),
    )
  }),
)
