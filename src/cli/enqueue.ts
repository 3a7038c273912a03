import { text } from 'node:stream/consumers'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import type { EnqueueOptions } from '../queue/prepare.ts'
import type { EnqueueStatus } from '../store/store.ts'
import { type Command, given, limitKeyOf, type Options, pairOf, parseJson, UsageError } from './command.ts'
import { noteNewQueue } from './known-queue.ts'

export const enqueue: Command = {
  name: 'enqueue',
  operands: '<queue> <json>',
  says: 'one job; - reads the payload from standard input',
  options: {
    delay: { value: 'duration', says: 'due after this long: 30s, 5m, 1d' },
    'run-at': { value: 'time', says: 'due at this time: 2030-01-31T09:00:00Z' },
    'start-before': { value: 'time', says: 'cancelled if not started by then' },
    priority: { value: '0-9', says: '0 is first; what the queue says unless given' },
    attempts: { value: 'n', says: 'how often it may be claimed before a failure makes it dead' },
    timeout: { value: 'duration', says: 'how long one run may take' },
    dedup: { value: 'key', says: 'refused as a duplicate while another job holds this key' },
    'dedup-scope': { value: 'scope', says: 'live, waiting, or a window such as 1h; live unless given' },
    replace: { says: 'a holder of the key that still waits becomes this job' },
    'idempotency-key': { value: 'key', says: 'the same key with the same payload answers with the first job' },
    'limit-key': { value: 'key', says: 'what the job shares a limit by; found by the definition unless given' },
    'no-limit-key': { says: 'knowingly no limit key: no limit of keys holds for the job' },
    id: { value: 'uuid', says: 'an id of your own' },
    header: { value: 'name=value', multiple: true, says: 'may be given several times' },
    label: { value: 'name=value', multiple: true, says: 'what the job is found by; may be given several times' },
  },
  mayCreate: () => true,
  examples: [`holdfast enqueue welcome '{"userId":"u1"}' --delay 5m`, 'cat payload.json | holdfast enqueue import -'],

  async run({ open, operands: [queue = '', json = ''], options, note }) {
    const payload = parseJson(json === '-' ? await text(process.stdin) : json, 'payload')
    const enqueueing = enqueueOptions(options)
    const holdfast = await open()
    await noteNewQueue(holdfast, queue, note)
    const enqueued = await holdfast.queue(queue).enqueue(payload, enqueueing).catch(throwInOptions)
    return { data: enqueued, text: `${statusText[enqueued.status]} ${enqueued.id}` }
  },
}

const statusText: Readonly<Record<EnqueueStatus, string>> = {
  created: 'created',
  duplicate: 'duplicate of',
  replaced: 'replaced',
  notReplaced: 'not replaced, because it has started:',
}

function enqueueOptions(options: Options): EnqueueOptions {
  if (options.isSet('delay') && options.isSet('run-at'))
    throw new UsageError('Give either --delay or --run-at, not both.')
  const [headers, labels] = [options.texts('header'), options.texts('label')]
  return given({
    id: options.text('id'),
    delay: options.duration('delay'),
    runAt: options.time('run-at'),
    startBefore: options.time('start-before'),
    priority: options.number('priority'),
    attempts: options.number('attempts'),
    timeout: options.duration('timeout'),
    dedup: dedupOf(options),
    limitKey: limitKeyOf(options),
    idempotencyKey: options.text('idempotency-key'),
    headers: headers.length > 0 ? Object.fromEntries(headers.map((text) => pairOf('header', text))) : undefined,
    labels: labels.length > 0 ? Object.fromEntries(labels.map((text) => pairOf('label', text))) : undefined,
  }) as EnqueueOptions
}

function dedupOf(options: Options): EnqueueOptions['dedup'] {
  const key = options.text('dedup')
  if (key === undefined) {
    const alone = ['dedup-scope', 'replace'].find((name) => options.isSet(name))
    if (alone !== undefined) throw new UsageError(`--${alone} says how --dedup works; give --dedup with a key too.`)
    return undefined
  }
  const replace = options.isSet('replace')
  if (replace && options.isSet('idempotency-key')) {
    throw new UsageError(
      '--idempotency-key cannot be combined with --replace: a job that is replaced keeps its own key. Leave out one of them.',
    )
  }
  const scope = options.text('dedup-scope') ?? 'live'
  if (scope === 'live' || scope === 'waiting') return { key, replace, scope }
  return { key, replace, scope: { window: options.duration('dedup-scope') ?? 0 } }
}

/** The same refusal, with the names that the command has for what to do about it. */
function throwInOptions(error: unknown): never {
  if (!isHoldfastError(error, 'LIMIT_KEY_REQUIRED')) throw error
  const message = error.message.replace(
    /Enqueue with that definition, or pass limitKey .*|, or pass limitKey .*/,
    (found) =>
      `${found.startsWith(',') ? ', or pass' : 'Pass'} --limit-key, or --no-limit-key for a job without a key.`,
  )
  throw new HoldfastError(error.code, message, error.facts, { cause: error })
}
