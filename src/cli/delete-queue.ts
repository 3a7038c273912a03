import type { Command } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'
import { inWords } from './typed.ts'

export const deleteQueue: Command = {
  name: 'delete-queue',
  operands: '<queue>',
  says: 'delete a queue with its definition, limits and keys; its next job makes it anew',
  options: {
    'with-jobs': { says: 'delete its jobs too; it is refused while one of them runs' },
    'dry-run': { says: 'only say what would be deleted, and what refers to the queue' },
  },
  examples: ['holdfast delete-queue welcome --dry-run', 'holdfast delete-queue welcome --with-jobs'],

  async run({ open, operands: [queue = ''], options }) {
    const dryRun = options.isSet('dry-run')
    const holdfast = await open()
    const found = await knownQueue(holdfast, queue)
    if (isAnswer(found)) return found
    const answer = await holdfast.deleteQueue(queue, { dryRun, withJobs: options.isSet('with-jobs') })
    const { jobs, keys, schedules, onDeadOf, refusal } = answer
    if (refusal !== null) return { data: answer, text: inWords(refusal), hasFailed: true }
    const what = `queue ${queue} with ${counted(jobs, 'job')} and ${counted(keys, 'key')}`
    const notes = [
      schedules.length > 0 && `These schedules enqueue into it, and must be removed first: ${schedules.join(', ')}.`,
      onDeadOf.length > 0 && `Dead jobs of these queues send notices to it, and make it anew: ${onDeadOf.join(', ')}.`,
    ].filter((note) => note !== false)
    return { data: answer, text: [`${dryRun ? 'Would delete' : 'Deleted'} ${what}.`, ...notes].join('\n') }
  },
}

function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}
