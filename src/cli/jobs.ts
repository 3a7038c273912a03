import { includedParts, type JobsFilter } from '../client/filter.ts'
import type { JobInfo, ListedJob } from '../client/job-info.ts'
import type { JobsPage } from '../client/jobs.ts'
import { messageWithCauses } from '../job/error.ts'
import type { IncludedPart } from '../job/record.ts'
import type { CountedJobs } from '../store/store.ts'
import { type Answer, type Command, given } from './command.ts'
import { conditionOptions, toConditions } from './conditions.ts'
import { noteUnknownQueue } from './known-queue.ts'
import { compactJson, oneLine, type Terminal } from './terminal.ts'

export const jobs: Command = {
  name: 'jobs',
  operands: '',
  says: 'list or count jobs: waiting ones in the order they will run, finished ones newest first',
  options: {
    ...conditionOptions,
    include: { value: 'part', multiple: true, says: `${includedParts.join(', ')}: parts that a listing leaves out` },
    count: { says: 'only count the jobs that match' },
    limit: { value: 'n', says: 'how many at most; 50 unless given' },
    after: { value: 'cursor', says: 'the next page, with the cursor that the page before printed' },
  },
  examples: [
    'holdfast jobs --queue welcome --state dead',
    'holdfast jobs --state dead --error ECONNRESET --ended-since 30m --count',
    'holdfast jobs --payload customer.id=c1 --include payload --limit 10 --json',
  ],

  async run({ open, options, terminal, note }) {
    const conditions = toConditions(options)
    const after = options.text('after')
    if (options.isSet('count'))
      return counted(await (await open()).count({ ...conditions, ...given({ after }) }), terminal)
    const include = options.texts('include') as readonly IncludedPart[]
    const filter: JobsFilter = { ...conditions, ...given({ after }), include, limit: options.number('limit') ?? 50 }
    const holdfast = await open()
    const page = await holdfast.jobs(filter)
    if (page.jobs.length === 0)
      for (const queue of options.texts('queue')) await noteUnknownQueue(holdfast, queue, note)
    const found = page.jobs.length === 0 ? noneOf(page) : tableOf(page.jobs, terminal)
    const more = page.next === null ? '' : `\n${terminal.paint('dim', moreOf(page.next))}`
    return { data: page, text: found + more }
  },
}

function counted(counted: CountedJobs, terminal: Terminal): Answer {
  const { count, looked, next } = counted
  const more = next === null ? '' : `\n${terminal.paint('dim', `Looked at ${looked} jobs. ${moreOf(next)}`)}`
  return { data: counted, text: `${count}${more}` }
}

function noneOf({ next, looked }: JobsPage): string {
  return next === null ? 'No jobs match.' : `None of the ${looked} jobs that were looked at matches.`
}

function moreOf(next: string): string {
  return `There are more: add --after ${next}`
}

function tableOf(page: readonly (ListedJob & Partial<JobInfo>)[], terminal: Terminal): string {
  const hasPayload = page.some((job) => 'payload' in job)
  const columns = [
    { title: 'ID' },
    { title: 'QUEUE' },
    { title: 'STATE' },
    { title: 'ATTEMPTS', align: 'right' },
    { title: 'WHEN' },
    { title: hasPayload ? 'ERROR OR PAYLOAD' : 'ERROR OR SIZE' },
  ] as const
  return terminal.table(
    columns,
    page.map((job) => [
      job.id,
      job.queue,
      terminal.state(job.state),
      `${job.attempts}/${job.maxAttempts}`,
      terminal.distance(job.finishedAt ?? job.startedAt ?? job.runAt),
      job.error
        ? terminal.paint('red', oneLine(messageWithCauses(job.error)))
        : hasPayload
          ? compactJson(job.payload)
          : sizeOf(job.payloadBytes),
    ]),
  )
}

function sizeOf(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`
  return bytes < 1024 * 1024 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1024 / 1024).toFixed(1)} MiB`
}
