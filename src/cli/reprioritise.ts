import { type Command, UsageError } from './command.ts'

export const reprioritise: Command = {
  name: 'reprioritise',
  operands: '<id> <priority>',
  says: 'move a waiting job to the end of another priority, 0 (first) to 9',
  options: {},
  examples: ['holdfast reprioritise 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 0'],

  async run({ open, operands: [id = '', text = ''] }) {
    if (!/^\d$/.test(text)) throw new UsageError(`A priority must be 0 to 9; got "${text}".`)
    const priority = Number(text)
    const state = await (await open()).reprioritise(id, priority)
    return { data: { id, state, priority }, text: `Job ${id} is ${state} with priority ${priority}.` }
  },
}
