import { join } from 'node:path'
import { defineFlow, open } from '../../src/index.ts'
import type { Contender, Place } from './contender.ts'

const startAtOnce = 1_000

export async function openHoldfast(isSqlite: boolean, { url, directory }: Place): Promise<Contender> {
  const holdfast = await open(isSqlite ? `sqlite:${join(directory, 'jobs.db')}` : url)
  let returned = (_: number) => {}
  const three = defineFlow<{ n: number }, number>('three', {}, async (flow, { n }) => {
    const a = await flow.step('a', () => n)
    const b = await flow.step('b', () => a + 1)
    const c = await flow.step('c', () => b + 1)
    returned(n)
    return c
  })
  return {
    async work(concurrency, told) {
      returned = told
      holdfast.work(three, { concurrency })
    },
    start: (n) => holdfast.start(three, { n }),
    async startAll(numbers) {
      for (let at = 0; at < numbers.length; at += startAtOnce)
        await holdfast.queue(three).enqueueMany(numbers.slice(at, at + startAtOnce).map((n) => ({ payload: { n } })))
    },
    succeeded: async () => (await holdfast.stats(three)).done,
    close: () => holdfast.close(),
  }
}
