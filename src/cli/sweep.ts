import type { Command } from './command.ts'

export const sweep: Command = {
  name: 'sweep',
  operands: '',
  says: 'sweep now: rescue, promote, admit and prune jobs, and fire schedules',
  options: {},
  examples: ['holdfast sweep'],

  async run({ open }) {
    const totals = await (await open()).sweep()
    const { rescued, promoted, overdue, admitted, pruned, fired } = totals
    return {
      data: totals,
      text: `Rescued ${rescued}, promoted ${promoted}, cancelled ${overdue} overdue, admitted ${admitted}, pruned ${pruned}, fired ${fired}.`,
    }
  },
}
