import { bulkOptions, byOf, changeAll, subjectOf } from './bulk.ts'
import { type Command, timeOf } from './command.ts'

export const reschedule: Command = {
  name: 'reschedule',
  operands: '[id] <time>',
  says: 'move a waiting job, or every one that matches, to another time, such as 1h (from now); if that has passed, it is ready at once',
  options: bulkOptions,
  examples: [
    'holdfast reschedule 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 2030-01-31T09:00:00Z',
    'holdfast reschedule 1h --queue welcome --state scheduled',
  ],

  async run(call) {
    const { id, rest } = subjectOf(call, 1)
    const runAt = timeOf('<time>', rest[0] ?? '')
    if (id === undefined) {
      return changeAll(call, {
        ...{ did: 'Rescheduled', does: 'reschedule' },
        run: (holdfast, filter, options) => holdfast.rescheduleAll(filter, { runAt }, options),
      })
    }
    const state = await (await call.open()).reschedule(id, runAt, byOf(call))
    const when = state === 'scheduled' ? `scheduled for ${runAt.toISOString()}` : state
    return { data: { id, state, runAt }, text: `Rescheduled ${id}: it is ${when}.` }
  },
}
