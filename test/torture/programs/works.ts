// A worker process: its handlers do what their jobs say. It also fires schedules, sweeps, runs the reaper and delivers webhooks.
import { startWorkers } from '../tasks.ts'
import { openWorld, options, report, serve } from './member.ts'

const reportEveryMs = 500

const world = await openWorld()
let settled = 0
world.holdfast.on('settle.ended', (facts) => {
  settled += facts.settled
})
setInterval(() => {
  report({ kind: 'settled', count: settled })
  settled = 0
}, reportEveryMs).unref()
startWorkers(world, { receiver: options.receiver, isLast: false })
await serve(world, { stop: async () => {} })
