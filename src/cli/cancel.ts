import type { Command } from './command.ts'

export const cancel: Command = {
  name: 'cancel',
  operands: '<id>',
  says: 'a waiting job ends at once; a running one is asked to',
  options: {},
  examples: ['holdfast cancel 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'],

  async run({ open, operands: [id = ''] }) {
    const status = await (await open()).cancel(id)
    const texts = {
      cancelled: `Cancelled ${id}.`,
      requested: `Requested: ${id} is running, and its holder learns of it at the next renewal.`,
    }
    return { data: { id, status }, text: texts[status] }
  },
}
