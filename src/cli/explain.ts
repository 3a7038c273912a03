import type { Command } from './command.ts'
import { compactJson, oneLine } from './terminal.ts'

export const explain: Command = {
  name: 'explain',
  operands: '<id>',
  says: 'explain the state of a job: what it waits for, which worker runs it, or how it ended',
  options: {},
  examples: ['holdfast explain 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'],

  async run({ open, operands: [id = ''], terminal }) {
    const explanation = await (await open()).explain(id)
    const { sentence, queue, state, facts } = explanation
    const rows = Object.entries(facts)
      .filter(([, fact]) => fact !== null && fact !== undefined)
      .map(([name, fact]) => [name, fact instanceof Date ? terminal.time(fact) : compactJson(fact)] as const)
    const shown = [['queue', queue] as const, ['state', terminal.state(state)] as const, ...rows]
    const width = Math.max(...shown.map(([name]) => name.length))
    const lines = shown.map(([name, text]) => `${terminal.paint('dim', name.padEnd(width))}  ${text}`)
    return { data: explanation, text: [oneLine(sentence), ...lines].join('\n') }
  },
}
