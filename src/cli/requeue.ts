import type { RequeueAllAnswer, SkippedJob } from '../store/store.ts'
import { type Answer, type Call, type Command, given, UsageError } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'

const filters = ['queue', 'error', 'died-since', 'died-before']

export const requeue: Command = {
  name: 'requeue',
  operands: '[id]',
  says: 'make a dead job, or every dead job that matches, ready again with all its attempts',
  options: {
    queue: { value: 'name', says: 'dead jobs of this queue' },
    error: { value: 'text', says: 'jobs whose error message or its causes contain this text' },
    'died-since': { value: 'time', says: 'jobs that died at this time or later' },
    'died-before': { value: 'time', says: 'jobs that died before this time' },
    'dry-run': { says: 'only count the jobs; change nothing' },
  },
  examples: [
    'holdfast requeue 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80',
    'holdfast requeue --queue welcome --error ECONNREFUSED --dry-run',
  ],

  async run(call) {
    const [id] = call.operands
    const isFiltered = filters.some((name) => call.options.isSet(name))
    if (id === undefined && !isFiltered) {
      throw new UsageError(`Give a job id, or one of ${filters.map((name) => `--${name}`).join(', ')}.`)
    }
    if (id !== undefined && (isFiltered || call.options.isSet('dry-run'))) {
      throw new UsageError('Give either a job id or a filter, not both; --dry-run is for filters.')
    }
    return id === undefined ? requeueAll(call) : requeueOne(call, id)
  },
}

async function requeueOne({ open }: Call, id: string): Promise<Answer> {
  await (await open()).requeue(id)
  return { data: { id, requeued: 1, skipped: [] }, text: `Requeued ${id}.` }
}

async function requeueAll({ open, options }: Call): Promise<Answer> {
  const dryRun = options.isSet('dry-run')
  const filter = given({
    queue: options.text('queue'),
    error: options.text('error'),
    diedSince: options.time('died-since'),
    diedBefore: options.time('died-before'),
  })
  const holdfast = await open()
  if (filter.queue !== undefined) {
    const found = await knownQueue(holdfast, filter.queue)
    if (isAnswer(found)) return found
  }
  const answer = await holdfast.requeueAll(filter, { dryRun })
  return { data: { dryRun, ...answer }, text: textOf(answer, dryRun) }
}

function textOf({ requeued, skipped }: RequeueAllAnswer, dryRun: boolean): string {
  const jobs = requeued === 1 ? '1 dead job' : `${requeued} dead jobs`
  const head = dryRun ? `Would requeue ${jobs}.` : `Requeued ${jobs}.`
  return [head, ...skipped.map(whySkipped)].join('\n')
}

function whySkipped({ id, heldBy, reason }: SkippedJob): string {
  if (heldBy === 'LIMIT_KEY_REQUIRED') return `Skipped ${id}: its limit key cannot be known.`
  return `Skipped ${id}: ${reason ?? `its dedup key is held by ${heldBy}.`}`
}
