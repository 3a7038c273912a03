import type { RunTime } from '../client/run-time.ts'
import { bulkOptions, byOf, runOnAll, subjectOf } from './bulk.ts'
import { type Command, timeOf, UsageError } from './command.ts'

export const reschedule: Command = {
  name: 'reschedule',
  operands: '[id] [time]',
  says: 'move a waiting job, or every one that matches, to a time (such as 1h, from now) or by --delay; if that has passed, it is ready at once',
  options: { ...bulkOptions, delay: { value: 'time', says: 'instead of a time: how long from now, such as 30m' } },
  examples: [
    'holdfast reschedule 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 2030-01-31T09:00:00Z',
    'holdfast reschedule 2030-01-31T09:00:00Z --queue welcome --state scheduled',
    'holdfast reschedule --delay 2h --queue welcome',
  ],

  async run(call) {
    const delay = call.options.duration('delay')
    const { id, rest } = subjectOf(call, delay === undefined ? 1 : 0)
    if (delay !== undefined && rest.length > 0) throw new UsageError('Give either a time or --delay, not both.')
    const when: RunTime = delay === undefined ? { runAt: timeOf('<time>', rest[0] ?? '') } : { delay }
    if (id === undefined) {
      return runOnAll(call, {
        ...{ did: 'Rescheduled', does: 'reschedule' },
        run: (holdfast, filter, options) => holdfast.rescheduleAll(filter, when, options),
      })
    }
    const holdfast = await call.open()
    const state = await holdfast.reschedule(id, when, byOf(call))
    const runAt = when.runAt ?? (await holdfast.job(id))?.runAt ?? null
    const isFor = state === 'scheduled' && runAt !== null
    const is = isFor ? `scheduled for ${new Date(runAt).toISOString()}` : state
    return { data: { id, state, runAt }, text: `Rescheduled ${id}: it is ${is}.` }
  },
}
