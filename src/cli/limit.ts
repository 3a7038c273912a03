import type { QueueInfo } from '../client/queues.ts'
import type { LimitFields } from '../job/limit-key.ts'
import type { Limit } from '../job/record.ts'
import type { LimitOverrideFields, LimitOverrideOptions, RateOptions } from '../queue/limit.ts'
import { span } from '../runtime/duration.ts'
import { type Command, given, type Options, UsageError } from './command.ts'
import { isAnswer, knownQueue } from './known-queue.ts'

export const limit: Command = {
  name: 'limit',
  operands: '<queue>',
  says: 'sets limits of a queue in place of its definition, until they are cleared; without options, shows them',
  options: {
    concurrency: { value: 'n', says: 'how many jobs of the queue may run at once; none: any number' },
    rate: {
      value: 'n/duration',
      says: 'how many jobs of the queue may start within that time: 10/1m; none: any number',
    },
    none: { says: 'no limit of the whole queue' },
    'key-concurrency': { value: 'n', says: 'how many jobs of each limit key may run at once' },
    'key-rate': { value: 'n/duration', says: 'how many jobs of each limit key may start within that time' },
    'key-none': { says: 'no limit of limit keys' },
    clear: { says: 'the limits of the definition count again' },
  },
  examples: ['holdfast limit crawl', 'holdfast limit crawl --key-concurrency 1', 'holdfast limit crawl --clear'],

  async run({ open, operands: [queue = ''], options }) {
    const override = overrideOf(options)
    const holdfast = await open()
    const found = await knownQueue(holdfast, queue)
    if (isAnswer(found)) return found
    if (override !== undefined) await holdfast.overrideLimit(queue, override)
    const info = override === undefined ? found : await knownQueue(holdfast, queue)
    if (isAnswer(info)) return info
    const { limit, keyLimit, limitOverride } = info
    return { data: { queue, limit, keyLimit, limitOverride }, text: `${queue}: ${limitsText(info)}.` }
  },
}

/** Undefined: nothing is to be changed. */
function overrideOf(options: Options): LimitOverrideOptions | null | undefined {
  const whole = limitIn(options, { concurrency: 'concurrency', rate: 'rate', none: 'none' })
  const ofKeys = limitIn(options, { concurrency: 'key-concurrency', rate: 'key-rate', none: 'key-none' })
  const isNothing = whole === undefined && ofKeys === undefined
  if (!options.isSet('clear')) return isNothing ? undefined : given({ limit: whole, keyLimit: ofKeys })
  if (!isNothing) throw new UsageError('--clear takes back every override; give it alone.')
  return null
}

type Names = Readonly<Record<'concurrency' | 'rate' | 'none', string>>

function limitIn(options: Options, names: Names): LimitOverrideFields | null | undefined {
  const isNone = (name: string) => options.text(name) === 'none'
  const concurrency = isNone(names.concurrency) ? null : options.number(names.concurrency)
  const rate = isNone(names.rate) ? null : rateIn(options, names.rate)
  const isSet = concurrency !== undefined || rate !== undefined
  if (!options.isSet(names.none)) return isSet ? given({ concurrency, rate }) : undefined
  if (isSet) throw new UsageError(`--${names.none} says that there is no limit; give it alone.`)
  return null
}

function rateIn(options: Options, name: string): RateOptions | undefined {
  const text = options.text(name)
  if (text === undefined) return undefined
  const [, count, per] = /^(\d+)\/(.+)$/.exec(text) ?? []
  if (count === undefined || per === undefined) throw new UsageError(`--${name} is such as 10/1m; got "${text}".`)
  return { count: Number(count), per: per as '1m' }
}

/** `2 at once (override), 10 in 1 m; 1 at once of each key`. */
export function limitsText({ limit, keyLimit, limitOverride }: QueueInfo): string {
  const parts = [limitText(limit, limitOverride?.limit), limitText(keyLimit, limitOverride?.keyLimit, ' of each key')]
  return parts.filter((part) => part !== null).join('; ') || 'no limits'
}

function limitText(limit: Limit | null, override: LimitFields = {}, of = ''): string | null {
  const isOverride = override.concurrency !== undefined || override.rate !== undefined
  if (limit === null) return isOverride ? `no limit${of} (override)` : null
  const { concurrency, rate } = limit
  const whose = (field: keyof LimitFields) => (override[field] === undefined ? '' : ' (override)')
  const parts = [
    concurrency === null ? null : `${concurrency} at once${of}${whose('concurrency')}`,
    rate && `${rate.count} in ${span(rate.windowMs)}${of}${whose('rate')}`,
  ]
  return parts.filter((part) => part !== null).join(', ')
}
