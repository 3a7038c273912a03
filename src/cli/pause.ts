import type { PauseOptions } from '../client/queues.ts'
import type { Holdfast } from '../holdfast.ts'
import { type Answer, type Command, given, type Options, UsageError } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'

export const pause: Command = {
  name: 'pause',
  operands: '[queue]',
  says: 'pause a queue, or all queues: claims skip them, running jobs continue, and no job changes',
  options: {
    all: { says: 'pause every queue that there is now, instead of one' },
    for: { value: 'time', says: 'the queue is resumed after this time, such as 30m' },
    until: { value: 'time', says: 'the queue is resumed at this time, such as 2030-01-31T09:00:00Z' },
    by: { value: 'name', says: 'your name; explain shows it' },
    create: { says: 'pause a queue that does not exist yet, before its first job' },
  },
  examples: ['holdfast pause --all --for 30m', 'holdfast pause welcome --by ada', 'holdfast pause welcome --for 30m'],

  async run({ open, operands, options }) {
    const queue = queueOrAll(operands, options, 'pause')
    const chosen = given({
      by: options.text('by'),
      for: options.duration('for'),
      until: options.time('until'),
    }) as PauseOptions // the library refuses both
    const holdfast = await open()
    if (queue === null) return changedQueues('Paused', await holdfast.pauseAll(chosen))
    if (!options.isSet('create')) {
      const found = await knownQueue(holdfast, queue)
      if (isAnswer(found)) return { ...found, text: `${found.text} --create pauses a queue before its first job.` }
    }
    await holdfast.pause(queue, chosen)
    return shownState(holdfast, queue, 'Paused')
  },
}

/** Null: all queues. */
export function queueOrAll(operands: readonly string[], options: Options, verb: string): string | null {
  const [queue] = operands
  const isAll = options.isSet('all')
  if (isAll === (queue !== undefined))
    throw new UsageError(`Write: holdfast ${verb} <queue>, or holdfast ${verb} --all`)
  if (isAll && options.isSet('create')) throw new UsageError('--create is for one queue, not for --all.')
  return queue ?? null
}

export function changedQueues(verb: string, queues: readonly string[]): Answer {
  const count = `${queues.length} ${queues.length === 1 ? 'queue' : 'queues'}`
  const names = queues.length === 0 ? '' : `: ${queues.join(', ')}`
  return { data: { queues }, text: `${verb} ${count}${names}.` }
}

export async function shownState(holdfast: Holdfast, queue: string, verb: string): Promise<Answer> {
  const info = (await holdfast.queues()).find(({ name }) => name === queue)
  const waiting = (info?.ready ?? 0) + (info?.scheduled ?? 0) + (info?.held ?? 0)
  const counts = `${waiting} waiting, ${info?.running ?? 0} running`
  const until = info?.pausedUntil ?? null
  const data = { queue, paused: info?.paused ?? false, pausedUntil: until }
  return { data, text: `${verb} ${queue}${until === null ? '' : ` until ${until.toISOString()}`}: ${counts}.` }
}
