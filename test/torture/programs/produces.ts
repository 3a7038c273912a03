// Enqueues everything, in and out of transactions, and interferes with it.

import { enqueuePoison } from '../tasks.ts'
import { Workload } from '../workload.ts'
import { duty, openWorld, serve } from './member.ts'

const world = await openWorld()
const life = Workload.application(world, duty)
await serve(world, { stop: () => life.stop(), over: life.over, poison: (label) => enqueuePoison(world, label) })
