import type { Kv, KvValue } from '../kv/kv.ts'
import { type Answer, type Call, type Command, given, ownValue, parseJson, UsageError } from './command.ts'
import { compactJson, oneLine, prettyJson, type Terminal } from './terminal.ts'

type Entry = KvValue & { readonly key: string }

export const kv: Command = {
  name: 'kv',
  operands: 'get <key> | put <key> <json> | delete <key> | scan [prefix]',
  says: 'read and write the key-value store beside the queues',
  options: {
    'if-version': { value: 'n', says: 'delete: only if the entry still has this version' },
    ttl: { value: 'duration', says: 'put: the entry expires after this time' },
    limit: { value: 'n', says: 'scan: how many at most; 100 unless given' },
  },
  examples: [
    `holdfast kv put cursor '{"page":7}' --ttl 1d`,
    'holdfast kv get cursor',
    'holdfast kv delete cursor --if-version 12',
    'holdfast kv scan cursor/',
  ],

  mayCreate: ([verb]) => verb === 'put',

  async run(call) {
    const [verb = '', ...operands] = call.operands
    const action = ownValue(actions, verb)
    if (!action) throw new UsageError(`kv takes get, put, delete or scan; got "${verb}".`)
    if (operands.length < action.min || operands.length > action.max) throw new UsageError(`Write: ${action.usage}`)
    return action.run({ ...call, operands })
  },
}

interface Action {
  readonly usage: string
  readonly min: number
  readonly max: number
  run(call: Call): Promise<Answer>
}

const actions: Readonly<Record<string, Action>> = {
  get: { usage: 'holdfast kv get <key>', min: 1, max: 1, run: get },
  put: { usage: 'holdfast kv put <key> <json>', min: 2, max: 2, run: put },
  delete: { usage: 'holdfast kv delete <key> [--if-version n]', min: 1, max: 1, run: remove },
  scan: { usage: 'holdfast kv scan [prefix]', min: 0, max: 1, run: scan },
}

async function get({ open, operands: [key = ''] }: Call): Promise<Answer> {
  const entry = await (await open()).kv.get(key)
  if (!entry) return { data: null, text: missing(key), isMissing: true }
  return { data: { key, ...entry }, text: prettyJson(entry.value), isVerbatim: true }
}

async function put({ open, operands: [key = '', json = ''], options }: Call): Promise<Answer> {
  const value = parseJson(json, 'value')
  const version = await (await open()).kv.put(key, value, given({ ttl: options.duration('ttl') }))
  return { data: { key, version }, text: `Put ${oneLine(key)}, version ${version}.` }
}

async function remove({ open, operands: [key = ''], options }: Call): Promise<Answer> {
  const { kv } = await open()
  const wanted = options.number('if-version')
  if (wanted !== undefined) return removeVersion(kv, key, wanted)
  const deleted = await kv.delete(key)
  const text = deleted ? `Deleted ${oneLine(key)}.` : missing(key)
  return { data: { key, deleted }, text, isMissing: !deleted }
}

async function removeVersion(kv: Kv, key: string, wanted: number): Promise<Answer> {
  const { applied: deleted, version } = await kv.compareAndDelete(key, wanted)
  const kept = version === null ? missing(key) : `${oneLine(key)} has version ${version} and was not deleted.`
  return { data: { key, deleted, version }, text: deleted ? `Deleted ${oneLine(key)}.` : kept, isMissing: !deleted }
}

function missing(key: string): string {
  return `There is no key ${oneLine(key)}.`
}

async function scan({ open, operands: [prefix = ''], options, terminal }: Call): Promise<Answer> {
  const limit = options.number('limit') ?? 100
  const holdfast = await open()
  const entries: Entry[] = []
  let isCut = false
  for await (const entry of holdfast.kv.scan(prefix)) {
    isCut = entries.length >= limit
    if (isCut) break
    entries.push(entry)
  }
  const more = isCut ? `\n${terminal.paint('dim', `There are more: raise --limit, now ${limit}.`)}` : ''
  return { data: entries, text: entries.length === 0 ? 'No keys match.' : tableOf(entries, terminal) + more }
}

function tableOf(entries: readonly Entry[], terminal: Terminal): string {
  const columns = [
    { title: 'KEY' },
    { title: 'VERSION', align: 'right' },
    { title: 'EXPIRES' },
    { title: 'VALUE' },
  ] as const
  return terminal.table(
    columns,
    entries.map(({ key, version, expiresAt, value }) => [
      oneLine(key),
      String(version),
      expiresAt ? terminal.distance(expiresAt) : terminal.paint('dim', '·'),
      compactJson(value),
    ]),
  )
}
