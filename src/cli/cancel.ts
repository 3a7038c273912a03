import type { Command } from './command.ts'

export const cancel: Command = {
  name: 'cancel',
  operands: '<id>',
  says: 'cancel a waiting job at once, or request it of a running one',
  options: {},
  examples: ['holdfast cancel 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'],

  async run({ open, operands: [id = ''] }) {
    const status = await (await open()).cancel(id)
    const texts = {
      cancelled: `Cancelled ${id}.`,
      requested: `Requested: ${id} is running, and its worker gets the request at the next renewal.`,
    }
    return { data: { id, status }, text: texts[status] }
  },
}
