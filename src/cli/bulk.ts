// Commands that change one job by its id, or every job that matches the flags of a filter.

import type { BulkAnswer, BulkOptions } from '../client/bulk.ts'
import type { JobConditions } from '../client/filter.ts'
import { isHoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import type { SkippedJobs, SkipReason } from '../store/store.ts'
import { type Answer, byOption, type Call, given, type Option, UsageError } from './command.ts'
import { conditionOptions, toConditions } from './conditions.ts'
import { isAnswer, knownQueue } from './known-queue.ts'
import { oneLine } from './terminal.ts'

export const bulkOptions: Readonly<Record<string, Option>> = {
  ...conditionOptions,
  'dry-run': { says: 'change nothing: count the jobs, and what would be skipped' },
  by: byOption,
  after: { value: 'cursor', says: 'go on where a call was stopped, with the cursor that it printed' },
}

/** Flags that do not say which jobs. */
const forMany = ['dry-run', 'after']

/** The id, if one was given, and the other operands. */
export function subjectOf({ operands, options }: Call, others = 0): { readonly id?: string; readonly rest: string[] } {
  const [id, rest] = operands.length > others ? [operands[0], operands.slice(1)] : [undefined, [...operands]]
  const isFiltered = Object.keys(conditionOptions).some((name) => options.isSet(name))
  if (id === undefined && !isFiltered) {
    throw new UsageError(
      'Give a job id, or say which jobs: --queue, --state, --label, --error and others; --help has all.',
    )
  }
  if (id !== undefined && (isFiltered || forMany.some((name) => options.isSet(name)))) {
    throw new UsageError('Give either a job id or a filter, not both; --dry-run and --after are for filters.')
  }
  return { ...given({ id }), rest }
}

/** For a command about one job. */
export function byOf({ options }: Call): { readonly by?: string } {
  return given({ by: options.text('by') })
}

interface Verb {
  /** `Requeued`, `requeue` */
  readonly did: string
  readonly does: string
  /** What is said behind the number of jobs. */
  readonly more?: (answer: BulkAnswer) => string
  readonly run: (holdfast: Holdfast, filter: JobConditions, options: BulkOptions) => Promise<BulkAnswer>
}

/** While it works, a terminal shows how far it is. It is stopped by SIGINT after the step that is under way. */
export async function runOnAll({ open, options, terminal, note }: Call, verb: Verb): Promise<Answer> {
  const filter = toConditions(options)
  const dryRun = options.isSet('dry-run')
  const holdfast = await open()
  for (const queue of options.texts('queue')) {
    const found = await knownQueue(holdfast, queue)
    if (isAnswer(found)) return found
  }
  const interrupted = new AbortController()
  const interrupt = () => interrupted.abort()
  process.once('SIGINT', interrupt).once('SIGTERM', interrupt)
  const answer = await verb
    .run(holdfast, filter, {
      ...{ dryRun, signal: interrupted.signal },
      ...given({ by: options.text('by'), after: options.text('after') }),
      onProgress: ({ changed, looked }) => {
        if (!options.isSet('json')) terminal.redraw(`${headOf(verb, dryRun, changed)} Looked at ${numberOf(looked)}.`)
      },
    })
    .catch((error) => {
      const next = isHoldfastError(error) ? error.facts['next'] : null
      if (typeof next === 'string') note(`To go on, add --after ${next}`)
      throw error
    })
    .finally(() => {
      terminal.redraw('')
      process.off('SIGINT', interrupt).off('SIGTERM', interrupt)
    })
  const hasFailed = answer.next !== null || answer.skipped.some(({ reason }) => reason === 'refused')
  return { data: { dryRun, ...answer }, text: textOf(verb, dryRun, answer), hasFailed }
}

function textOf(verb: Verb, dryRun: boolean, answer: BulkAnswer): string {
  const { changed, skipped, next } = answer
  const toGoOn = dryRun ? 'To go on with the dry run' : 'To go on'
  const stopped = next === null ? [] : [`Stopped before all jobs were gone over. ${toGoOn}, add --after ${next}`]
  return [
    headOf(verb, dryRun, changed) + (verb.more?.(answer) ?? ''),
    ...skipped.map((each) => whySkipped(each, dryRun)),
    ...stopped,
  ].join('\n')
}

function headOf({ did, does }: Verb, dryRun: boolean, changed: number): string {
  return `${dryRun ? `Would ${does}` : did} ${jobsOf(changed)}.`
}

const reasons: Readonly<Record<SkipReason, string>> = {
  running: 'running: cancel first, or wait',
  dedupKeyHeld: 'another job holds the dedup key',
  idTaken: 'a newer job has the id',
  batchCancelled: 'the batch was cancelled',
  limitKeyUnknown: 'the limit key cannot be known',
  startBefore: 'it must start before that time',
  refused: 'the database refused it',
  busy: 'another open transaction has its dedup key, or something else that it needs: try again later',
}

function whySkipped({ reason, count, ids, message }: SkippedJobs, dryRun: boolean): string {
  const named = ids.length < count ? `${ids.join(', ')}, …` : ids.join(', ')
  return `${dryRun ? 'Would skip' : 'Skipped'} ${jobsOf(count)} (${message === undefined ? reasons[reason] : oneLine(message)}): ${named}`
}

function jobsOf(count: number): string {
  return `${numberOf(count)} ${count === 1 ? 'job' : 'jobs'}`
}

function numberOf(count: number): string {
  return count.toLocaleString('en')
}
