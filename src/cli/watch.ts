import type { ChangedState } from '../store/store.ts'
import { type Command, given } from './command.ts'
import { noteUnknownQueue } from './known-queue.ts'

export const watch: Command = {
  name: 'watch',
  operands: '',
  says: 'print a line for every change of a job from now on, in any process, until interrupted',
  options: {
    queue: { value: 'name', says: 'only jobs of this queue' },
    state: {
      value: 'state',
      says: 'only changes to this: scheduled, ready, running, done, dead, cancelled or deleted; may be repeated',
      multiple: true,
    },
    after: { value: 'cursor', says: 'continue after this change; --json prints the cursor of each' },
    limit: { value: 'n', says: 'end after this many changes' },
  },
  examples: ['holdfast watch --queue welcome', 'holdfast watch --state dead --state cancelled --json'],

  async run({ open, options, terminal, print, note }) {
    const interrupted = new AbortController()
    process.once('SIGINT', () => interrupted.abort()).once('SIGTERM', () => interrupted.abort())
    const states = options.texts('state') as readonly ChangedState[]
    let left = options.number('limit') ?? Number.POSITIVE_INFINITY
    const holdfast = await open()
    const queue = options.text('queue')
    if (queue !== undefined) await noteUnknownQueue(holdfast, queue, note)
    const changes = holdfast.watch(
      given({
        queue,
        states: states.length > 0 ? states : undefined,
        after: options.text('after'),
        signal: interrupted.signal,
      }),
    )
    for await (const change of changes) {
      const { id, queue: name, state, at } = change
      print(change, `${at.toISOString()}  ${id}  ${terminal.state(state)}  ${name}`)
      if (--left <= 0) break
    }
    return null
  },
}
