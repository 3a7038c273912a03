import type { Holdfast } from '../holdfast.ts'
import { type Answer, type Command, ownValue, UsageError } from './command.ts'

export const schedule: Command = {
  name: 'schedule',
  operands: 'pause <name> | resume <name> | run <name> | remove <name>',
  says: 'pause, resume or remove a schedule, or enqueue its job now',
  options: {},
  examples: ['holdfast schedule pause nightly-report', 'holdfast schedule run nightly-report'],

  async run({ open, operands: [verb = '', name, ...rest] }) {
    const action = ownValue(actions, verb)
    if (!action) throw new UsageError(`schedule takes pause, resume, run or remove; got "${verb}".`)
    if (name === undefined || rest.length > 0) throw new UsageError(`Write: holdfast schedule ${verb} <name>`)
    return action(await open(), name)
  },
}

const actions: Readonly<Record<string, (holdfast: Holdfast, name: string) => Promise<Answer>>> = {
  async pause(holdfast, name) {
    const paused = await holdfast.pauseSchedule(name)
    return { data: { name, paused }, text: paused ? `Paused schedule ${name}.` : `Schedule ${name} is already paused.` }
  },

  async resume(holdfast, name) {
    const resumed = await holdfast.resumeSchedule(name)
    return { data: { name, resumed }, text: resumed ? `Resumed schedule ${name}.` : `Schedule ${name} is not paused.` }
  },

  async run(holdfast, name) {
    const { id, status } = await holdfast.runScheduleNow(name)
    const text = status === 'created' ? `Enqueued job ${id}.` : `Job ${id} holds its dedup key and has not ended yet.`
    return { data: { name, id, status }, text }
  },

  async remove(holdfast, name) {
    const removed = await holdfast.unschedule(name)
    const text = removed
      ? `Removed schedule ${name}. A program that declares it will add it again at its next start.`
      : `There is no schedule ${name}.`
    return { data: { name, removed }, text, isMissing: !removed }
  },
}
