import { defineFlow } from '../src/index.ts'
import { openInMemory } from '../src/testing/index.ts'
const { holdfast } = await openInMemory({ logger: false })
let t0 = 0, times: number[] = []
let n = 0
const flow = defineFlow('f', { backoff: { base: 0 } }, async (flow) => {
  t0 = performance.now()
  for (let i = 0; i < 1000; i++) await flow.step(`s${i}`, () => i)
  times.push(performance.now() - t0)
  if (n++ < 4) throw new Error('x')
})
const w = holdfast.work(flow)
const { id } = await holdfast.start(flow, null)
await holdfast.result(id)
console.log(times)
const t = performance.now()
const f2 = defineFlow('g', {}, async (flow) => { for (let i = 0; i < 3; i++) await flow.step(`s${i}`, () => i) })
const w2 = holdfast.work(f2, { concurrency: 64 })
const ids = (await holdfast.queue(f2).enqueueMany(Array.from({length: 3000}, () => ({ payload: null })))).map(x => x.id)
const s = performance.now()
await Promise.all(ids.map(id => holdfast.result(id, { timeout: '5m' })))
console.log(3000 / (performance.now() - s) * 1000, 'flows/s')
await holdfast.close()
