// Declares a schedule of every second and works on its jobs until it is killed or its input says to end.
//   fires.ts <store>
import { once } from 'node:events'
import { open } from '../../../src/open.ts'

const [store = ''] = process.argv.slice(2)
{
  await using holdfast = await open(store)
  await holdfast.schedule('tick', { cron: '* * * * * *', queue: 'ticks', missed: 'all' })
  holdfast.work('ticks', async () => null, { concurrency: 1 })
  console.log(JSON.stringify('ready'))
  await once(process.stdin, 'data')
}
process.stdin.destroy()
