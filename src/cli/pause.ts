import type { Holdfast } from '../holdfast.ts'
import { type Answer, type Command, given } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'

export const pause: Command = {
  name: 'pause',
  operands: '<queue>',
  says: 'pause a queue: claims skip it, running jobs continue, and no job changes',
  options: {
    by: { value: 'name', says: 'your name; explain shows it' },
    create: { says: 'pause a queue that does not exist yet, before its first job' },
  },
  examples: ['holdfast pause welcome', 'holdfast pause welcome --by ada'],

  async run({ open, operands: [queue = ''], options }) {
    const holdfast = await open()
    if (!options.isSet('create')) {
      const found = await knownQueue(holdfast, queue)
      if (isAnswer(found)) return { ...found, text: `${found.text} --create pauses a queue before its first job.` }
    }
    await holdfast.pause(queue, given({ by: options.text('by') }))
    return shownState(holdfast, queue, 'Paused')
  },
}

export async function shownState(holdfast: Holdfast, queue: string, verb: string): Promise<Answer> {
  const info = (await holdfast.queues()).find(({ name }) => name === queue)
  const waiting = (info?.ready ?? 0) + (info?.scheduled ?? 0) + (info?.held ?? 0)
  const counts = `${waiting} waiting, ${info?.running ?? 0} running`
  return { data: { queue, paused: info?.paused ?? false }, text: `${verb} ${queue}: ${counts}.` }
}
