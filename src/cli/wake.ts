import { type Command, parseJson } from './command.ts'

export const wake: Command = {
  name: 'wake',
  operands: '<id> [json]',
  says: 'make a scheduled job ready at once; its handler finds the JSON in job.wake',
  options: {},
  examples: [`holdfast wake 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 '{"approved":true}'`],

  async run({ open, operands: [id = '', json] }) {
    const data = json === undefined ? undefined : parseJson(json, 'data')
    const state = await (await open()).wake(id, data)
    const text =
      state === 'running' ? `${id} is running; its next snooze will end at once.` : `Woke ${id}: it is ${state}.`
    return { data: { id, state }, text }
  },
}
