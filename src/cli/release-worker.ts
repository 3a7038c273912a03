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
    const holdfast = await open({ isSilent: true }) // else a warning for each lease
    const ends = { waiting: 0, dead: 0, cancelled: 0 }
    holdfast.on('lease.expired', ({ state }) => {
      ends[state === 'dead' || state === 'cancelled' ? state : 'waiting'] += 1
    })
    const answer = await holdfast.releaseWorker(worker, { ...given({ by: options.text('by') }), dryRun })
    const { released, left } = answer
    const named = terminal.paint('bold', worker)
    const jobs = counted(released, 'job', 'jobs')
    const ended = [
      ends.waiting > 0 && `${counted(ends.waiting, 'job waits', 'jobs wait')} again`,
      ends.dead > 0 && counted(ends.dead, 'is dead', 'are dead'),
      ends.cancelled > 0 && counted(ends.cancelled, 'is cancelled', 'are cancelled'),
    ].filter((part) => part !== false)
    const what = ended.length === 0 ? '.' : `: ${ended.join(', ')}.`
    const rest =
      left === 0
        ? ''
        : ` ${left} more ${left === 1 ? 'is' : 'are'} being settled, or blocked; the sweep takes them soon.`
    const text = dryRun
      ? `Worker ${named} holds ${jobs}.`
      : `Ended ${counted(released, 'lease', 'leases')} of worker ${named}${what}${rest}`
    return { data: { worker, ...answer, ...(!dryRun && ends), dryRun }, text }
  },
}

function counted(count: number, one: string, many: string): string {
  return `${count} ${count === 1 ? one : many}`
}
