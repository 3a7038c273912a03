import { createReadStream } from 'node:fs'
import type { Batch } from '../batch/batch.ts'
import { jsonLines, toJsonLines } from '../batch/json-lines.ts'
import type { BatchItem, BatchOptions } from '../batch/options.ts'
import type { BatchProgress } from '../batch/progress.ts'
import { HoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import type { BatchState } from '../job/batch.ts'
import { isJobId } from '../job/names.ts'
import { escapeControls } from '../runtime/printable.ts'
import { bar, barLine, batchState, percent, tally } from './bar.ts'
import { type Answer, type Call, type Command, given, ownValue, UsageError } from './command.ts'
import { noteNewQueue } from './known-queue.ts'
import { oneLine, type Terminal } from './terminal.ts'

export const batch: Command = {
  name: 'batch',
  operands:
    'list | show <batch> | submit [file] | pause <batch> | resume <batch> | cancel <batch> | retry <batch> | close <batch> | delete <batch> | results <batch>',
  says: 'submit jobs that belong together as JSON lines, show and control them, and read their results',
  options: {
    name: { value: 'text', says: 'submit: the name of the batch; the file’s name unless given' },
    key: { value: 'text', says: 'submit: after a crash, a submission with the same key continues where it stopped' },
    queue: { value: 'name', says: 'submit: lines are payloads of this queue, not { queue, payload, … }' },
    concurrency: { value: 'n', says: 'submit: how many items run at once; 3 unless given, Infinity for no limit' },
    'on-complete': { value: 'queue', says: 'submit: enqueue a job in this queue when all items have ended' },
    'stop-when-failed': { value: 'share', says: 'submit: cancel the batch once more than this share is dead: 0.2' },
    open: { says: 'submit: leave the batch open for more items; close ends that' },
    follow: { says: 'show, submit: print the progress until the batch is finished' },
    state: { value: 'state', says: 'list: open, queued, running, paused, done or cancelled' },
    by: { value: 'name', says: 'pause, cancel, retry: your name; show, or the history of the items, has it' },
    reason: { value: 'text', says: 'cancel: why' },
    limit: { value: 'n', says: 'list: how many at most; 20 unless given' },
    after: { value: 'cursor', says: 'list: the next page, with the cursor that the page before printed' },
  },
  mayCreate: ([verb]) => verb === 'submit',
  examples: [
    'holdfast batch submit articles.jsonl --key march --concurrency 5 --follow',
    'cat urls.jsonl | holdfast batch submit --name urls --queue fetch',
    'holdfast batch show march --follow',
    "holdfast batch cancel march --reason 'wrong list'",
    'holdfast batch results march > results.jsonl',
  ],

  async run(call) {
    const [verb = '', ...operands] = call.operands
    const action = ownValue(actions, verb)
    if (!action) throw new UsageError(`batch takes ${Object.keys(actions).join(', ')}; got "${verb}".`)
    const { operand } = action
    if (operands.length > (operand === '' ? 0 : 1) || (operand === '<batch>' && operands.length === 0)) {
      throw new UsageError(`Write: holdfast batch ${verb} ${operand}`.trim())
    }
    return action.run({ ...call, operands })
  },
}

interface Action {
  readonly operand: '' | '<batch>' | '[file]'
  run(call: Call): Promise<Answer | null>
}

const actions: Readonly<Record<string, Action>> = {
  list: { operand: '', run: list },
  show: { operand: '<batch>', run: show },
  submit: { operand: '[file]', run: submit },
  pause: { operand: '<batch>', run: controlWith((found, options) => found.pause(options), 'Paused') },
  resume: { operand: '<batch>', run: controlWith((found) => found.resume(), 'Resumed') },
  cancel: {
    operand: '<batch>',
    run: controlWith((found, options) => found.cancel(options), 'Cancelled', ['by', 'reason']),
  },
  retry: {
    operand: '<batch>',
    run: controlWith((found, options) => found.retryFailed(options), 'Retrying the failed items of'),
  },
  close: { operand: '<batch>', run: controlWith((found) => found.close(), 'Closed') },
  delete: { operand: '<batch>', run: remove },
  results: { operand: '<batch>', run: results },
}

async function list({ open, options, terminal }: Call): Promise<Answer> {
  const filter = given({
    state: options.text('state') as BatchState | undefined,
    limit: options.number('limit') ?? 20,
    after: options.text('after'),
  })
  const page = await (await open()).batches(filter)
  const more = page.next === null ? '' : `\n${terminal.paint('dim', `There are more: add --after ${page.next}`)}`
  return { data: page, text: page.batches.length === 0 ? 'No batches match.' : tableOf(page.batches, terminal) + more }
}

async function show(call: Call): Promise<Answer | null> {
  const { open, operands, options, terminal } = call
  const found = await batchNamed(await open(), operands[0] as string)
  if (options.isSet('follow')) await follow(found, call)
  const progress = await found.progress()
  return { data: progress, text: detailsOf(progress, terminal) }
}

async function submit(call: Call): Promise<Answer | null> {
  const { open, operands, options, terminal, note } = call
  const [file = '-'] = operands
  const name = options.text('name') ?? (file === '-' ? undefined : file)
  if (name === undefined) throw new UsageError('Name the batch, as in --name articles.')
  const concurrency = options.text('concurrency') === 'Infinity' ? Infinity : options.number('concurrency')
  const completion = options.text('on-complete')
  const settings: BatchOptions = {
    name,
    ...given({
      key: options.text('key'),
      concurrency,
      onComplete: completion === undefined ? undefined : { queue: completion },
      stopWhenFailed: options.number('stop-when-failed'),
      open: options.isSet('open') || undefined,
    }),
  }
  const holdfast = await open()
  for (const queue of [options.text('queue'), completion]) {
    if (queue !== undefined) await noteNewQueue(holdfast, queue, note)
  }
  const made = await holdfast.batch(settings, itemsOf(file, options.text('queue'), terminal))
  if (options.isSet('follow')) await follow(made, call)
  const progress = await made.progress()
  return { data: progress, text: detailsOf(progress, terminal) }
}

async function* itemsOf(file: string, queue: string | undefined, terminal: Terminal): AsyncGenerator<BatchItem> {
  const source = file === '-' ? process.stdin : createReadStream(file)
  let read = 0
  for await (const line of jsonLines(source)) {
    read += 1
    if (read % 1_000 === 0) terminal.redraw(`${read.toLocaleString('en')} items …`)
    yield queue === undefined ? (line as BatchItem) : { queue, payload: line }
  }
  terminal.redraw('')
}

const pollMs = 250

/** On a terminal, one line that is redrawn until the batch is finished. Elsewhere, a new line for every change. */
async function follow(found: Batch, { terminal, print }: Call): Promise<void> {
  const interrupted = new AbortController()
  const interrupt = () => interrupted.abort()
  process.once('SIGINT', interrupt).once('SIGTERM', interrupt)
  let last = ''
  while (!interrupted.signal.aborted) {
    const progress = await found.progress()
    const line = barLine(progress, terminal)
    if (terminal.isLive) terminal.redraw(line)
    else if (line !== last) print(progress, line)
    last = line
    if (progress.finishedAt !== null) break
    await new Promise((resolve) => setTimeout(resolve, pollMs))
  }
  terminal.redraw('')
  process.off('SIGINT', interrupt).off('SIGTERM', interrupt)
}

function controlWith(
  act: (found: Batch, options: { by?: string; reason?: string }) => Promise<BatchProgress>,
  did: string,
  names: readonly ('by' | 'reason')[] = ['by'],
): Action['run'] {
  return async ({ open, operands, options, terminal }) => {
    const said = Object.fromEntries(names.map((name) => [name, options.text(name)]))
    const found = await batchNamed(await open(), operands[0] as string)
    const progress = await act(found, given(said) as { by?: string; reason?: string })
    return { data: progress, text: `${did} batch ${oneLine(progress.name)}.\n${barLine(progress, terminal)}` }
  }
}

async function remove({ open, operands: [name = ''] }: Call): Promise<Answer> {
  const found = await batchNamed(await open(), name)
  await found.delete()
  return { data: { id: found.id, deleted: true }, text: `Deleted batch ${found.id}.` }
}

async function results({ open, operands: [name = ''] }: Call): Promise<null> {
  const found = await batchNamed(await open(), name)
  for await (const line of toJsonLines(found.results())) {
    if (!process.stdout.write(escapeControls(line)))
      await new Promise((resolve) => process.stdout.once('drain', resolve))
  }
  return null
}

/** By its id, or by the key of its submission. */
async function batchNamed(holdfast: Holdfast, name: string): Promise<Batch> {
  const found = await holdfast.getBatch(isJobId(name.toLowerCase()) ? name : { key: name })
  if (found) return found
  const message = `There is no batch with the id or key ${name}: it never existed, was deleted, or its retention is over.`
  throw new HoldfastError('BATCH_NOT_FOUND', message, { batch: name })
}

function tableOf(batches: readonly BatchProgress[], terminal: Terminal): string {
  const columns = [
    ...[{ title: 'ID' }, { title: 'STATE' }, { title: 'ITEMS', align: 'right' as const }],
    ...[{ title: 'ENDED', align: 'right' as const }, { title: 'PROGRESS' }, { title: 'NAME' }],
  ]
  const rows = batches.map((each) => [
    ...[each.id, batchState(each.state, terminal), each.total.toLocaleString('en')],
    ...[`${percent(each)} %`, bar(each, terminal, 10), oneLine(each.name)],
  ])
  return terminal.table(columns, rows)
}

function detailsOf(progress: BatchProgress, terminal: Terminal): string {
  const { id, name, key, concurrency, round, waiting, running, done, dead, cancelled } = progress
  const { createdAt, startedAt, finishedAt, pausedAt, pausedBy, cancelledBy, reason } = progress
  const at = (time: Date | null) => (time === null ? null : terminal.time(time))
  const rows: readonly (readonly [string, string | null])[] = [
    ['id', id],
    ['key', key === null ? null : oneLine(key)],
    ['state', batchState(progress.state, terminal)],
    ['items', tally({ waiting, running, done, dead, cancelled }) || 'none'],
    ['outcomes', tally(progress.outcomes) || null],
    ['warnings', tally(progress.warnings) || null],
    ['costs', tally(progress.costs) || null],
    ['at once', concurrency === null ? 'no limit' : String(concurrency)],
    ['round', round === 1 ? null : String(round)],
    ['created', at(createdAt)],
    ['started', at(startedAt)],
    ['finished', at(finishedAt)],
    ['paused', pausedAt && `${at(pausedAt)}${pausedBy === null ? '' : ` by ${oneLine(pausedBy)}`}`],
    ['cancelled by', cancelledBy === null ? null : oneLine(cancelledBy)],
    ['reason', reason === null ? null : oneLine(reason)],
  ]
  const shown = rows.flatMap(([title, text]) => (text === null ? [] : [[title, text] as const]))
  return [terminal.paint('bold', oneLine(name)), barLine(progress, terminal), terminal.facts(shown)].join('\n')
}
