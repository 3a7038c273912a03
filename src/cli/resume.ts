import type { Command } from './command.ts'
import { standing } from './pause.ts'

export const resume: Command = {
  name: 'resume',
  operands: '<queue>',
  says: 'resume a paused queue; claims take its jobs again',
  options: {},
  examples: ['holdfast resume welcome'],

  async run({ open, operands: [queue = ''] }) {
    const holdfast = await open()
    await holdfast.resume(queue)
    return standing(holdfast, queue, 'Resumed')
  },
}
