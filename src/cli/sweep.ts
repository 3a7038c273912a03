import type { Command } from './command.ts'

export const sweep: Command = {
  name: 'sweep',
  operands: '',
  says: 'sweep now: rescue, promote, admit and prune jobs, and fire schedules',
  options: {},
  examples: ['holdfast sweep'],

  async run({ open }) {
    const holdfast = await open()
    let dead = 0
    holdfast.on('lease.expired', ({ state }) => {
      if (state === 'dead') dead += 1
    })
    const totals = await holdfast.sweep()
    const { rescued, promoted, overdue, admitted, pruned, fired } = totals
    return {
      data: { ...totals, dead },
      text: `${rescuedText(rescued, dead)}, promoted ${promoted}, cancelled ${overdue} overdue, admitted ${admitted}, pruned ${pruned}, fired ${fired}.`,
    }
  },
}

/** A lease that expired in the last attempt of its job makes the job dead: that is no rescue. */
function rescuedText(expired: number, dead: number): string {
  const rescued = `Rescued ${expired - dead}`
  return dead === 0 ? rescued : `${rescued}, ${dead} died in the last attempt`
}
