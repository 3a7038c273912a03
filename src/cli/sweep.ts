import type { Command } from './command.ts'

export const sweep: Command = {
  name: 'sweep',
  operands: '',
  says: 'rescues expired leases, promotes what is due, prunes what retention is done with, fires schedules',
  options: {},
  examples: ['holdfast sweep'],

  async run({ open }) {
    const totals = await (await open()).sweep()
    const { rescued, promoted, overdue, admitted, pruned, fired } = totals
    return {
      data: totals,
      text: `Rescued ${rescued}, promoted ${promoted}, cancelled ${overdue} overdue, let in ${admitted}, pruned ${pruned}, fired ${fired}.`,
    }
  },
}
