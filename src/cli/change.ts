import { text } from 'node:stream/consumers'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import { byOption, type Command, given, limitKeyOf, type Options, parseJson, UsageError } from './command.ts'

const parts = ['payload', 'attempts', 'headers', 'labels', 'limit-key', 'no-limit-key']

export const change: Command = {
  name: 'change',
  operands: '<id>',
  says: 'change a waiting job; what is not given stays, and the job keeps its place',
  options: {
    payload: { value: 'json', says: 'the new payload; - reads it from standard input' },
    attempts: { value: 'n', says: 'how often it may be claimed in all, more than it was already' },
    headers: { value: 'json', says: 'all its headers: an object of texts' },
    labels: { value: 'json', says: 'all labels that it states: an object of texts' },
    'limit-key': { value: 'key', says: 'another limit key; with a payload it is found by the definition unless given' },
    'no-limit-key': { says: 'knowingly no limit key' },
    by: byOption,
  },
  examples: [
    `holdfast change 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 --payload '{"userId":"u2"}' --by ada`,
    'holdfast change 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 --attempts 10',
  ],

  async run({ open, operands: [id = ''], options }) {
    if (!parts.some((name) => options.isSet(name))) {
      throw new UsageError(`Give at least one of ${parts.map((name) => `--${name}`).join(', ')}.`)
    }
    const changes = given({
      payload: await payloadOf(options),
      attempts: options.number('attempts'),
      headers: textsOf(options, 'headers'),
      labels: textsOf(options, 'labels'),
      limitKey: limitKeyOf(options),
    })
    const holdfast = await open()
    const by = given({ by: options.text('by') })
    const state = await holdfast.change(id, changes, by).catch(throwInOptions)
    return { data: { id, state }, text: `Changed ${Object.keys(changes).join(', ')} of ${id}: it is ${state}.` }
  },
}

async function payloadOf(options: Options): Promise<unknown> {
  const given = options.text('payload')
  if (given === undefined) return undefined
  return parseJson(given === '-' ? await text(process.stdin) : given, 'payload')
}

/** The library checks what is in it. */
function textsOf(options: Options, name: 'headers' | 'labels'): Record<string, string> | undefined {
  const given = options.text(name)
  return given === undefined ? undefined : (parseJson(given, name) as Record<string, string>)
}

/** The same refusal, with the names that the command has for what to do about it. */
function throwInOptions(error: unknown): never {
  if (!isHoldfastError(error, 'LIMIT_KEY_REQUIRED')) throw error
  const message = error.message
    .replace(/Change limitKey too .*/, 'Pass --limit-key, or --no-limit-key for a job without a key.')
    .replace(/or change limitKey too .*/, 'or --limit-key, or --no-limit-key for a job without a key.')
  throw new HoldfastError(error.code, message, error.facts, { cause: error })
}
