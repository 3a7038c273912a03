import { messageWithCauses } from '../job/error.ts'
import type { JobError } from '../job/record.ts'
import type { Command } from './command.ts'
import { compactJson, moment, oneLine } from './terminal.ts'

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
      .map(([name, fact]) => [name, shownFact(name, fact)] as const)
    const shown = [['queue', queue] as const, ['state', terminal.state(state)] as const, ...rows]
    return { data: explanation, text: `${oneLine(sentence)}\n${terminal.facts(shown)}` }
  },
}

/** Times are without their distance: the sentence has it, by the clock of the store. Of an error `holdfast job` has the stack. */
function shownFact(name: string, fact: unknown): string {
  if (fact instanceof Date) return moment(fact)
  if (name === 'error') {
    const { message, ...rest } = fact as JobError
    return oneLine(messageWithCauses({ ...rest, message: message.split('\n', 1)[0] ?? '' }))
  }
  return compactJson(fact)
}
