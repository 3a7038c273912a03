// Claims by hand and settles in every way, once, twice, late or never; sweeps.
import { Workload } from '../workload.ts'
import { duty, openWorld, say, serve } from './member.ts'

const sayEveryMs = 500

const world = await openWorld()
const life = Workload.claimer(world, duty)
let told = 0
setInterval(() => {
  say({ said: 'settled', count: life.settled - told })
  told = life.settled
}, sayEveryMs).unref()
await serve(world, { stop: () => life.stop(), over: life.over })
