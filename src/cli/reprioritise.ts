import { bulkOptions, byOf, runOnAll, subjectOf } from './bulk.ts'
import { type Command, UsageError } from './command.ts'

export const reprioritise: Command = {
  name: 'reprioritise',
  operands: '[id] <priority>',
  says: 'move a waiting job, or every one that matches, to the end of another priority, 0 (first) to 9',
  options: bulkOptions,
  examples: [
    'holdfast reprioritise 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 0',
    'holdfast reprioritise 9 --queue welcome --label customer=c1',
  ],

  async run(call) {
    const { id, rest } = subjectOf(call, 1)
    const [text = ''] = rest
    if (!/^\d$/.test(text)) throw new UsageError(`A priority must be 0 to 9; got "${text}".`)
    const priority = Number(text)
    if (id === undefined) {
      return runOnAll(call, {
        ...{ did: 'Reprioritised', does: 'reprioritise' },
        run: (holdfast, filter, options) => holdfast.reprioritiseAll(filter, priority, options),
      })
    }
    const state = await (await call.open()).reprioritise(id, priority, byOf(call))
    return { data: { id, state, priority }, text: `Job ${id} is ${state} with priority ${priority}.` }
  },
}
