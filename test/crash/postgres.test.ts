// Processes on one database are killed at random moments while they do everything a queue can do; then the server itself
// crashes under them. What was answered must hold; what was not may or may not have landed, but never by half.
import { test } from 'node:test'
import { postgresGround, serverGround } from './ground.ts'
import { killSeries, serverSeries } from './series.ts'
import { assertPromises, seedFor } from './verdict.ts'

test('thirty processes are killed one after the other on one database, and one beside them goes on', async (t) => {
  await using ground = await postgresGround()
  await assertPromises(t, await killSeries(ground, { seed: seedFor(t), crashes: 30, beside: true }))
})

test('a server crashes ten times under the processes that use it', async (t) => {
  await using ground = await serverGround()
  await assertPromises(t, await serverSeries(ground, { seed: seedFor(t), crashes: 10 }))
})
