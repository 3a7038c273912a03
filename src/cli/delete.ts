import type { Command } from './command.ts'

export const deleteJob: Command = {
  name: 'delete',
  operands: '<id>',
  says: 'delete a job that is not running, with its history and its keys',
  options: {},
  examples: ['holdfast delete 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'],

  async run({ open, operands: [id = ''] }) {
    await (await open()).delete(id)
    return { data: { id, deleted: true }, text: `Deleted ${id}.` }
  },
}
