import type { Command } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'
import { shownState } from './pause.ts'

export const resume: Command = {
  name: 'resume',
  operands: '<queue>',
  says: 'resume a paused queue; claims take its jobs again',
  options: {},
  examples: ['holdfast resume welcome'],

  async run({ open, operands: [queue = ''] }) {
    const holdfast = await open()
    const found = await knownQueue(holdfast, queue)
    if (isAnswer(found)) return found
    await holdfast.resume(queue)
    return shownState(holdfast, queue, 'Resumed')
  },
}
