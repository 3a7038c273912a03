import type { Command } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'
import { changedQueues, queueOrAll, shownState } from './pause.ts'

export const resume: Command = {
  name: 'resume',
  operands: '[queue]',
  says: 'resume a paused queue, or all of them; claims take their jobs again',
  options: { all: { says: 'resume every paused queue' } },
  examples: ['holdfast resume welcome', 'holdfast resume --all'],

  async run({ open, operands, options }) {
    const queue = queueOrAll(operands, options, 'resume')
    const holdfast = await open()
    if (queue === null) return changedQueues('Resumed', await holdfast.resumeAll())
    const found = await knownQueue(holdfast, queue)
    if (isAnswer(found)) return found
    await holdfast.resume(queue)
    return shownState(holdfast, queue, 'Resumed')
  },
}
