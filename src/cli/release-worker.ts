import { type Command, given } from './command.ts'

export const releaseWorker: Command = {
  name: 'release-worker',
  operands: '<worker>',
  says: 'end the leases of a dead worker now; each attempt counts, as if the leases had expired',
  options: {
    by: { value: 'name', says: 'your name; the history of each job shows it' },
    'dry-run': { says: 'only count the jobs that the worker holds' },
  },
  examples: ['holdfast release-worker mailer-3 --dry-run', 'holdfast release-worker mailer-3 --by ada'],

  async run({ open, operands: [worker = ''], options, terminal }) {
    const dryRun = options.isSet('dry-run')
    const holdfast = await open()
    const answer = await holdfast.releaseWorker(worker, { ...given({ by: options.text('by') }), dryRun })
    const { released, left } = answer
    const jobs = `${released} ${released === 1 ? 'job' : 'jobs'}`
    const named = terminal.paint('bold', worker)
    const rest =
      left === 0
        ? ''
        : ` ${left} more ${left === 1 ? 'is' : 'are'} being settled, or blocked; the sweep takes them soon.`
    const text = dryRun ? `Worker ${named} holds ${jobs}.` : `Released ${jobs} of worker ${named}.${rest}`
    return { data: { worker, ...answer, dryRun }, text }
  },
}
