// Which workers there are. Every worker keeps one entry in the key-value store, with the queues that it serves and where it
// runs. The worker writes the entry again at a third of its time to live, and deletes it when it stops. So the entry of a worker
// that died is gone within a minute. Only what people read depends on it: a write that fails is made good by the next one.

import { hostname } from 'node:os'
import { bounds } from '../job/bounds.ts'
import { isPlainObject } from '../job/codec.ts'
import { parseJson } from '../job/json.ts'
import { isQueueName, isText, isTime } from '../job/names.ts'
import type { KvWrite } from '../job/record.ts'
import { entriesIn, writeEntry } from '../kv/entries.ts'
import { settingsDigest } from '../queue/stored-definitions.ts'
import type { Timers } from '../runtime/clock.ts'
import { newId } from '../runtime/id.ts'
import type { KvAnswer, KvEntry, Store } from '../store/store.ts'
import type { Plan } from './options.ts'

const presencePrefix = 'holdfast.worker.'

const ttlMs = 60_000
const everyMs = ttlMs / 3

/** A worker whose last heartbeat is younger than a minute. */
export interface WorkerInfo {
  readonly name: string
  /** Null: every queue of the store. */
  readonly queues: readonly string[] | null
  readonly concurrency: number
  /** A digest of the definition of each queue that it serves by a definition of its own. */
  readonly definitions: Readonly<Record<string, string>>
  readonly host: string
  readonly pid: number
  readonly since: Date
}

type OwnFacts = Pick<WorkerInfo, 'name' | 'queues' | 'concurrency' | 'definitions'>

export interface PresenceContext {
  readonly timers: Timers
  time(): Promise<number>
  write(write: KvWrite): Promise<KvAnswer>
}

export class Presence {
  readonly #context: PresenceContext
  readonly #key = `${presencePrefix}${newId()}` // two workers may have been given the same name
  readonly #facts: OwnFacts
  #since: number | null = null
  #callOff: (() => void) | null = null
  #writing: Promise<unknown> = Promise.resolve()

  constructor(context: PresenceContext, facts: OwnFacts) {
    this.#context = context
    this.#facts = facts
  }

  begin(): void {
    this.#writing = this.#write().catch(() => undefined)
    this.#callOff = this.#context.timers.after(everyMs, () => this.begin(), { keepsProcess: false })
  }

  async end(): Promise<void> {
    if (!this.#callOff) return
    this.#callOff()
    await this.#writing
    await this.#context.write({ as: 'delete', key: this.#key }).catch(() => undefined)
  }

  async #write(): Promise<void> {
    this.#since ??= await this.#context.time()
    const value = JSON.stringify({ ...this.#facts, host: hostname(), pid: process.pid, since: this.#since })
    await this.#context.write({ as: 'put', key: this.#key, value, ttlMs })
  }
}

/** Every worker whose entry has not expired. */
export async function readWorkers(store: Pick<Store, 'kvScan'>): Promise<WorkerInfo[]> {
  return (await entriesIn(store, presencePrefix)).map(readPresence).filter((worker) => worker !== null)
}

export function presenceOf(store: Store, timers: Timers, { name, all, queues, concurrency }: Plan): Presence {
  const context = { timers, time: () => store.time(), write: (write: KvWrite) => writeEntry(store, write) }
  const definitions = Object.fromEntries(
    [...queues.values()].flatMap(({ definition: { name: queue, settings } }) =>
      settings === null ? [] : [[queue, settingsDigest(settings)]],
    ),
  )
  return new Presence(context, { name, queues: all ? null : [...queues.keys()], concurrency, definitions })
}

/** Null: the entry is not the presence of a worker. */
function readPresence({ value }: KvEntry): WorkerInfo | null {
  try {
    const stored = parseJson(value) as { readonly [Name in keyof WorkerInfo]?: unknown }
    const { name, queues, concurrency, host, pid, since } = stored
    if (!isText(name) || name.length > bounds.workerLength || !isText(host) || !isTime(since)) return null
    if (!isCount(concurrency) || !isCount(pid)) return null
    if (queues !== null && !(Array.isArray(queues) && queues.every(isQueueName))) return null
    const definitions = digestsOf(stored.definitions)
    return { name, queues, concurrency, definitions, host, pid, since: new Date(since) }
  } catch {
    return null
  }
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && Number(value) > 0
}

/** By queue; what is not a digest is left out. */
function digestsOf(value: unknown): Readonly<Record<string, string>> {
  if (!isPlainObject(value)) return {}
  const digests = Object.entries(value as object).filter(
    (each): each is [string, string] => isQueueName(each[0]) && isText(each[1]),
  )
  return Object.fromEntries(digests)
}
