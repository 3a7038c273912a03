// Brings everything that is left to its end: by workers what handlers are for, by hand all else.
import { setTimeout as sleep } from 'node:timers/promises'
import { drain } from '../drain.ts'
import { startWorkers } from '../tasks.ts'
import { duty, openWorld, serve } from './member.ts'

const world = await openWorld()
startWorkers(world, { receiver: duty.receiver, isLast: true })
// PostgreSQL looks once a minute for what came late with an old time.
const isAwaited = async () => (await world.application.abandoned(1)).length > 0
await drain(world, { pass: sleep, maxMs: 90_000, isAwaited })
await serve(world, { stop: async () => {}, over: Promise.resolve() })
