// Finds and opens the store. Opening creates a missing file or schema, so a command that may not create one checks first. The
// code of a store is loaded when it is opened, because help and usage errors do not need it.

import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { type ErrorFacts, HoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { isPostgresUrl, postgresAddress, withoutPassword } from '../store/postgres/connection/address.ts'
import { Schema } from '../store/postgres/schema/schema.ts'
import { type Call, type OpenHow, UsageError } from './command.ts'

interface Rule {
  readonly mayCreate: boolean
  readonly note: Call['note']
}

/** A store that is opened on first use, and closed only if it was opened. */
export class LazyStore implements AsyncDisposable {
  readonly #open: (how: OpenHow) => Promise<Holdfast>
  #opened: Promise<Holdfast> | undefined

  constructor(url: string | undefined, rule: Rule) {
    this.#open = (how) => openStore(url, { ...rule, ...how })
  }

  open(how: OpenHow = {}): Promise<Holdfast> {
    this.#opened ??= this.#open(how)
    return this.#opened
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const holdfast = await this.#opened?.catch(() => undefined)
    await holdfast?.close()
  }
}

async function openStore(
  named: string | undefined,
  { mayCreate, note, readOnly = false, isSilent = false }: Rule & OpenHow,
): Promise<Holdfast> {
  const url = requireUrl(named)
  const { isThere, place, error } = await checkStore(url)
  if (!isThere && !mayCreate) throw error
  if (!isThere) note(`creating a new ${place}`)
  const { open } = await import('../open.ts')
  return open(url, { readOnly, ...(isSilent && { logger: false }) })
}

interface StoreCheck {
  readonly isThere: boolean
  readonly place: string
  /** For a command that may not create the store. */
  readonly error: HoldfastError
}

async function checkStore(url: string): Promise<StoreCheck> {
  if (isPostgresUrl(url)) return checkSchema(url)
  const path = resolve(filePath(url) ?? '.')
  return {
    isThere: existsSync(path),
    place: `database at ${path}`,
    error: missing(`There is no database at ${path}; check the path given as the store.`, { path }),
  }
}

async function checkSchema(url: string): Promise<StoreCheck> {
  const address = postgresAddress(url)
  const schema = new Schema(address.schema ?? 'holdfast')
  const { name } = schema
  const { hasSchema } = await import('../store/postgres/connection/one-off-client.ts')
  const database = withoutPassword(address.url)
  const sentence = `There is no schema ${name} at ${database}; check the store, or create the schema with holdfast migrate.`
  return {
    isThere: await hasSchema(address.url, schema),
    place: `schema ${name} at ${database}`,
    error: missing(sentence, { schema: name }),
  }
}

export function requireUrl(url: string | undefined): string {
  if (url !== undefined && url !== '') return url
  throw new UsageError('Name the store: --store sqlite:jobs.db, --store postgres://…, or set HOLDFAST_STORE.')
}

/** The file of a `sqlite:` URL; undefined for a store in memory or another kind of store. */
function filePath(url: string): string | undefined {
  const path = /^sqlite:(?:\/\/)?(.+)$/.exec(url)?.[1]
  return path === ':memory:' ? undefined : path
}

function missing(sentence: string, facts: ErrorFacts): HoldfastError {
  return new HoldfastError('STORE_UNAVAILABLE', sentence, facts)
}
