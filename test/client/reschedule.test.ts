// The clock of the store decides when a rescheduled job is due, and so when this process sweeps next.
import assert from 'node:assert/strict'
import test from 'node:test'
import type { Calls } from '../../src/client/calls.ts'
import { Jobs, type JobsContext } from '../../src/client/jobs.ts'
import { newId } from '../../src/runtime/id.ts'
import type { AlterRequest, Store } from '../../src/store/store.ts'

test('a reschedule counts by the clock of the store, however wrong that of the process is', async () => {
  const storeNow = Date.UTC(2001, 0, 1)
  const requests: AlterRequest[] = []
  const expected: number[] = []
  const store = {
    time: async () => storeNow,
    alter: async (some: readonly AlterRequest[]) => {
      requests.push(...some)
      return [{ state: 'scheduled' }]
    },
  } as unknown as Store
  const calls = { run: (action: () => Promise<unknown>) => action() } as unknown as Calls
  const expectDue = (delayMs: number) => expected.push(delayMs)
  const jobs = new Jobs({ store, calls, expectDue } as unknown as JobsContext)
  await jobs.reschedule(newId(), storeNow + 5_000, {})
  await jobs.reschedule(newId(), { delay: '7s' }, {})
  await jobs.reschedule(newId(), storeNow - 1, {})
  assert.deepEqual(expected, [5_000, 7_000, 0])
  assert.deepEqual(
    requests.map((request) => request.as === 'reschedule' && request.runAt - storeNow),
    [5_000, 7_000, -1],
  )
})
