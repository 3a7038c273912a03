import { bulkOptions, byOf, runOnAll, subjectOf } from './bulk.ts'
import type { Command } from './command.ts'

export const requeue: Command = {
  name: 'requeue',
  operands: '[id]',
  says: 'make an ended job, or every dead job that matches, ready again with all its attempts; with --state also done and cancelled jobs',
  options: bulkOptions,
  examples: [
    'holdfast requeue 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80',
    'holdfast requeue --queue welcome --error ECONNREFUSED --dry-run',
  ],

  async run(call) {
    const { id } = subjectOf(call)
    if (id === undefined) {
      return runOnAll(call, {
        ...{ did: 'Requeued', does: 'requeue' },
        run: (holdfast, filter, options) => holdfast.requeueAll(filter, options),
      })
    }
    await (await call.open()).requeue(id, byOf(call))
    return { data: { id, requeued: true }, text: `Requeued ${id}.` }
  },
}
