// Processes on one file are killed at random moments while they do everything a queue can do. What they were answered
// must hold; what they were not may or may not have landed, but never by half.
import { test } from 'node:test'
import { sqliteGround } from './ground.ts'
import { killSeries } from './series.ts'
import { assertPromises, seedFor } from './verdict.ts'

test('thirty processes are killed one after the other on one file', async (t) => {
  await using ground = await sqliteGround()
  await assertPromises(t, await killSeries(ground, { seed: seedFor(t), crashes: 30 }))
})

test('a process goes on while others on its file are killed', async (t) => {
  await using ground = await sqliteGround()
  await assertPromises(t, await killSeries(ground, { seed: seedFor(t), crashes: 12, beside: true }))
})
