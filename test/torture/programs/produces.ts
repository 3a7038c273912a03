// A producer: enqueues jobs of every kind, in transactions and outside, and changes them afterwards.

import { enqueuePoison } from '../tasks.ts'
import { Workload } from '../workload.ts'
import { openWorld, options, serve } from './member.ts'

const world = await openWorld()
const workload = Workload.application(world, options)
await serve(world, { stop: () => workload.stop(), over: workload.over, poison: (label) => enqueuePoison(world, label) })
