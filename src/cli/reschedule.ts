import { type Command, UsageError } from './command.ts'

export const reschedule: Command = {
  name: 'reschedule',
  operands: '<id> <time>',
  says: 'move a waiting job to another time; if that has passed, the job is ready at once',
  options: {},
  examples: ['holdfast reschedule 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 2030-01-31T09:00:00Z'],

  async run({ open, operands: [id = '', text = ''] }) {
    const runAt = new Date(text)
    if (Number.isNaN(runAt.getTime()))
      throw new UsageError(`A time must be written like 2030-01-31T09:00:00Z; got "${text}".`)
    const state = await (await open()).reschedule(id, runAt)
    const when = state === 'scheduled' ? `scheduled for ${runAt.toISOString()}` : state
    return { data: { id, state, runAt }, text: `Rescheduled ${id}: it is ${when}.` }
  },
}
