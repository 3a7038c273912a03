// Workers with handlers that do whatever their jobs say; fires schedules, sweeps, revives rows, delivers webhooks.
import { startWorkers } from '../tasks.ts'
import { duty, openWorld, say, serve } from './member.ts'

const sayEveryMs = 500

const world = await openWorld()
let settled = 0
world.holdfast.on('settle.ended', (facts) => {
  settled += facts.settled
})
setInterval(() => {
  say({ said: 'settled', count: settled })
  settled = 0
}, sayEveryMs).unref()
startWorkers(world, { receiver: duty.receiver, isLast: false })
await serve(world, { stop: async () => {} })
