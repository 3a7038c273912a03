import type { AttemptInfo, ChangeInfo, JobInfo } from '../client/job-info.ts'
import { messageWithCauses } from '../job/error.ts'
import type { ErrorCause } from '../job/record.ts'
import { span } from '../runtime/duration.ts'
import { tally } from './bar.ts'
import { type Command, notFound } from './command.ts'
import { lines, oneLine, prettyJson, type Terminal } from './terminal.ts'

export const job: Command = {
  name: 'job',
  operands: '<id>',
  says: 'show everything about one job, with its attempts and the changes by hand',
  options: {},
  examples: ['holdfast job 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'],

  async run({ open, operands: [id = ''], terminal }) {
    const info = await (await open()).job(id)
    if (!info) throw notFound(id)
    return { data: info, text: [factsOf(info, terminal), timelineOf(info, terminal)].join('\n\n') }
  },
}

function factsOf(info: JobInfo, terminal: Terminal): string {
  const time = (at: Date | null) => at && terminal.time(at)
  const isWaiting = info.state === 'scheduled' || info.state === 'ready' || info.state === 'held'
  const facts: [string, string | null | false][] = [
    ['job', terminal.paint('bold', info.id)],
    ['queue', info.queue],
    [
      'state',
      terminal.state(info.state) + (info.cancelRequested ? terminal.paint('yellow', ', cancel requested') : ''),
    ],
    ['attempts', `${info.attempts} of ${info.maxAttempts}`],
    ['priority', String(info.priority)],
    ['timeout', info.timeoutMs !== null && span(info.timeoutMs)],
    ['enqueued', time(info.createdAt)],
    [info.state === 'scheduled' ? 'due' : 'ready since', isWaiting && time(info.runAt)],
    ['start before', time(info.startBefore)],
    ['worker', info.worker && oneLine(info.worker)],
    ['started', time(info.startedAt)],
    ['lease until', time(info.expiresAt)],
    ['progress', info.progress && progressText(info.progress)],
    ['finished', time(info.finishedAt)],
    ['outcome', info.outcome && oneLine(info.outcome)],
    ['warning', info.warning && terminal.paint('yellow', oneLine(info.warning))],
    ['costs', info.costs && tally(info.costs)],
    ['batch', info.batch],
    ['limit key', info.limitKey && oneLine(info.limitKey)],
    ['dedup key', info.dedupKey && oneLine(info.dedupKey)],
    ['idempotency key', info.idempotencyKey && oneLine(info.idempotencyKey)],
    ['labels', Object.keys(info.labels).length > 0 && labelText(info.labels)],
    ['headers', Object.keys(info.headers).length > 0 && prettyJson(info.headers)],
    ['payload', prettyJson(info.payload)],
    ['result', info.state === 'done' && prettyJson(info.result)],
    ['error', info.error && terminal.paint('red', errorText(info.error))],
  ]
  return terminal.facts(facts.filter((fact): fact is [string, string] => typeof fact[1] === 'string'))
}

function labelText(labels: JobInfo['labels']): string {
  return Object.entries(labels)
    .map(([name, value]) => oneLine(`${name}=${value}`))
    .join(', ')
}

function progressText({ value, message }: NonNullable<JobInfo['progress']>): string {
  return `${Math.floor(value * 100)} %${message === null ? '' : ` ${oneLine(message)}`}`
}

function errorText({ stack, causes = [], ...error }: NonNullable<JobInfo['error']>): string {
  const first = stack ? lines(stack) : lines(headOf(error)) // a stack begins with name and message
  const behind = causes.map((cause) => `Caused by ${oneLine(headOf(cause))}`)
  return [...first, ...behind].join('\n')
}

function headOf({ name, message, code }: ErrorCause): string {
  const head = [name, message].filter((part) => part !== undefined).join(': ')
  return code === undefined ? head : `${head} (${code})`
}

/** Attempts and changes by hand, in the order in which they happened. */
function timelineOf({ history, changes }: JobInfo, terminal: Terminal): string {
  if (history.length + changes.length === 0) return terminal.paint('dim', 'No attempt has ended yet.')
  const columns = [
    { title: 'ATTEMPT', align: 'right' },
    { title: 'ENDING' },
    { title: 'WORKER' },
    { title: 'STARTED' },
    { title: 'TOOK', align: 'right' },
    { title: 'ERROR' },
  ] as const
  const timeline = [...history, ...changes].sort(byTime)
  return terminal.table(
    columns,
    timeline.map((entry) => ('as' in entry ? changeRow(entry, terminal) : attemptRow(entry, terminal))),
  )
}

/** A job is changed only while it waits: an attempt that has ended by then comes first. */
function byTime(a: AttemptInfo | ChangeInfo, b: AttemptInfo | ChangeInfo): number {
  if ('as' in a) return 'as' in b ? a.at.getTime() - b.at.getTime() : b.endedAt <= a.at ? 1 : -1
  if ('as' in b) return a.endedAt <= b.at ? -1 : 1
  return a.startedAt.getTime() - b.startedAt.getTime()
}

function attemptRow({ attempt, ending, worker, startedAt, endedAt, error }: AttemptInfo, terminal: Terminal): string[] {
  return [
    String(attempt),
    terminal.paint(ending === 'done' ? 'green' : error ? 'red' : 'yellow', ending),
    oneLine(worker),
    terminal.time(startedAt),
    span(endedAt.getTime() - startedAt.getTime()),
    error ? oneLine(messageWithCauses(error)) : '',
  ]
}

function changeRow({ as, by, at, what = [] }: ChangeInfo, terminal: Terminal): string[] {
  const did = [as, what.join(', ')].filter((part) => part !== '').join(' ')
  return ['', did, by === null ? '' : `by ${oneLine(by)}`, terminal.time(at), '', '']
}
