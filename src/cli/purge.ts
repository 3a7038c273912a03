import type { PurgeState } from '../store/store.ts'
import type { Command } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'

export const purge: Command = {
  name: 'purge',
  operands: '<queue>',
  says: 'delete every job of a queue that is not running, or only the jobs in some states',
  options: { state: { value: 'state', multiple: true, says: 'only jobs in this state; may be given more than once' } },
  examples: ['holdfast purge welcome --state dead --state cancelled'],

  async run({ open, operands: [queue = ''], options }) {
    const states = options.texts('state') as readonly PurgeState[]
    const holdfast = await open()
    const found = await knownQueue(holdfast, queue)
    if (isAnswer(found)) return found
    const { deleted } = await holdfast.purge(queue, states.length > 0 ? { states } : {})
    return { data: { queue, deleted }, text: `Deleted ${deleted} ${deleted === 1 ? 'job' : 'jobs'} of ${queue}.` }
  },
}
