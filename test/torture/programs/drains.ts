// The drain: runs every job that is left. Queues with handlers are left to workers, all others are claimed by hand.
import { setTimeout as sleep } from 'node:timers/promises'
import { drain } from '../drain.ts'
import { startWorkers } from '../tasks.ts'
import { openWorld, options, serve } from './member.ts'

const world = await openWorld()
startWorkers(world, { receiver: options.receiver, isLast: true })
// On PostgreSQL, jobs that were committed late with an old time are looked for once a minute.
const isAwaited = async () => (await world.application.abandoned(1)).length > 0
await drain(world, { pass: sleep, maxMs: 90_000, isAwaited })
await serve(world, { stop: async () => {}, over: Promise.resolve() })
