// Enqueues everything, in and out of transactions, and meddles with it.
import { Life } from '../life.ts'
import { enqueuePoison } from '../tasks.ts'
import { duty, openWorld, serve } from './member.ts'

const world = await openWorld()
const life = Life.application(world, duty)
await serve(world, { stop: () => life.stop(), over: life.over, poison: (label) => enqueuePoison(world, label) })
