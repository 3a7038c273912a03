// A claimer: claims by hand, settles in every way, once, twice, late or never, and sweeps.
import { Workload } from '../workload.ts'
import { openWorld, options, report, serve } from './member.ts'

const reportEveryMs = 500

const world = await openWorld()
const workload = Workload.claimer(world, options)
let reported = 0
setInterval(() => {
  report({ kind: 'settled', count: workload.settled - reported })
  reported = workload.settled
}, reportEveryMs).unref()
await serve(world, { stop: () => workload.stop(), over: workload.over })
