import type { JobInfo } from '../client/job-info.ts'
import type { JobsFilter } from '../client/requests.ts'
import { messageWithCauses } from '../job/error.ts'
import type { JobState } from '../job/record.ts'
import { type Command, given } from './command.ts'
import { noteUnknownQueue } from './known-queue.ts'
import { compactJson, oneLine, type Terminal } from './terminal.ts'

export const jobs: Command = {
  name: 'jobs',
  operands: '',
  says: 'list a page of jobs: waiting ones in the order they will run, finished ones newest first',
  options: {
    queue: { value: 'name', says: 'only jobs of this queue' },
    state: { value: 'state', says: 'held, scheduled, ready, running, done, dead or cancelled' },
    limit: { value: 'n', says: 'how many at most; 50 unless given' },
    after: { value: 'cursor', says: 'the next page, with the cursor that the page before printed' },
  },
  examples: ['holdfast jobs --queue welcome --state dead', 'holdfast jobs --state scheduled --limit 10 --json'],

  async run({ open, options, terminal, note }) {
    const filter: JobsFilter = given({
      queue: options.text('queue'),
      state: options.text('state') as JobState | undefined,
      limit: options.number('limit') ?? 50,
      after: options.text('after'),
    })
    const holdfast = await open()
    const page = await holdfast.jobs(filter)
    const queue = options.text('queue')
    if (page.jobs.length === 0 && queue !== undefined) await noteUnknownQueue(holdfast, queue, note)
    const more = page.next === null ? '' : `\n${terminal.paint('dim', `There are more: add --after ${page.next}`)}`
    return { data: page, text: page.jobs.length === 0 ? 'No jobs match.' : tableOf(page.jobs, terminal) + more }
  },
}

function tableOf(page: readonly JobInfo[], terminal: Terminal): string {
  const columns = [
    { title: 'ID' },
    { title: 'QUEUE' },
    { title: 'STATE' },
    { title: 'ATTEMPTS', align: 'right' },
    { title: 'WHEN' },
    { title: 'ERROR OR PAYLOAD' },
  ] as const
  return terminal.table(
    columns,
    page.map((job) => [
      job.id,
      job.queue,
      terminal.state(job.state),
      `${job.attempts}/${job.maxAttempts}`,
      terminal.distance(job.finishedAt ?? job.startedAt ?? job.runAt),
      job.error ? terminal.paint('red', oneLine(messageWithCauses(job.error))) : compactJson(job.payload),
    ]),
  )
}
