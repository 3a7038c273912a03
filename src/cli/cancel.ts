import type { BulkAnswer, CancelAllAnswer } from '../client/bulk.ts'
import { bulkOptions, byOf, runOnAll, subjectOf } from './bulk.ts'
import type { Command } from './command.ts'

export const cancel: Command = {
  name: 'cancel',
  operands: '[id]',
  says: 'cancel a job, or every job that matches: waiting jobs end at once, running ones are asked to stop',
  options: bulkOptions,
  examples: [
    'holdfast cancel 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80',
    'holdfast cancel --queue welcome --label customer=c1 --dry-run',
  ],

  async run(call) {
    const { id } = subjectOf(call)
    if (id === undefined) {
      return runOnAll(call, {
        ...{ did: 'Cancelled', does: 'cancel', more: stillRunning },
        run: (holdfast, filter, options) => holdfast.cancelAll(filter, options),
      })
    }
    const status = await (await call.open()).cancel(id, byOf(call))
    const texts = {
      cancelled: `Cancelled ${id}.`,
      requested: `Requested: ${id} is running, and its worker gets the request at the next renewal.`,
    }
    return { data: { id, status }, text: texts[status] }
  },
}

function stillRunning(answer: BulkAnswer): string {
  const { requested } = answer as CancelAllAnswer
  if (requested === 0) return ''
  const [are, their] = requested === 1 ? ['is', 'its worker is'] : ['are', 'their workers are']
  return ` Of these, ${requested.toLocaleString('en')} ${are} running, and ${their} asked to stop.`
}
