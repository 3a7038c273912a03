import { HoldfastError, isHoldfastError } from './errors.ts'
import { Holdfast } from './holdfast.ts'
import { checkBoolean, checkOptions } from './job/names.ts'
import { checkLogger, type Logger } from './observe/logger.ts'
import { type Clock, systemClock } from './runtime/clock.ts'
import { show } from './runtime/duration.ts'
import { checkDisabled } from './runtime/kill-switch.ts'
import { isPostgresUrl, postgresAddress, withoutPassword } from './store/postgres/connection/address.ts'
import { ReadOnlyStore } from './store/read-only.ts'
import type { Store } from './store/store.ts'

export interface OpenOptions {
  /** Where the store takes its time from; a virtual clock stands in under test. */
  readonly clock?: Clock
  /** Only look: nothing is created or migrated, and whatever would change something is refused with UNSUPPORTED. */
  readonly readOnly?: boolean
  /** Where log lines go: console, pino or any like it; stderr unless given, and nowhere when it is `false`. */
  readonly logger?: Logger | false
}

/** What `open` takes instead of a URL: `sqlite({ path })`, `postgres({ pool, schema })`. */
export type StoreOpener = (options: { readonly clock: Clock; readonly readOnly: boolean }) => Promise<Store>

/**
 * `open('sqlite:jobs.db')`, `open('sqlite::memory:')`, `open('postgres://…')`, `open('postgres://…?schema=name')`, or
 * `open(postgres({ pool, schema }))`.
 */
export async function open(target: string | StoreOpener, options: OpenOptions = {}): Promise<Holdfast> {
  checkOptions(options, 'open options', ['clock', 'readOnly', 'logger'])
  const opener = typeof target === 'function' ? target : await openerOf(target)
  const { clock = systemClock, logger } = options
  const readOnly = checkBoolean(options.readOnly ?? false, 'readOnly')
  checkLogger(logger)
  checkDisabled()
  try {
    const store = await opener({ clock, readOnly })
    const parts = { logger, ...(clock.timers && { timers: clock.timers }) }
    return new Holdfast(readOnly ? new ReadOnlyStore(store) : store, parts)
  } catch (error) {
    throw isHoldfastError(error) ? error : cannotOpen(error)
  }
}

/** Loads no store but the one that is opened: the other takes longer to load than the command line to answer. */
async function openerOf(url: unknown): Promise<StoreOpener> {
  if (typeof url === 'string' && url.startsWith('sqlite:')) {
    const path = url.slice('sqlite:'.length).replace(/^\/\//, '')
    refuseParts(path)
    if (path !== '') return (await import('./store/sqlite/index.ts')).sqlite({ path })
  }
  if (isPostgresUrl(url)) return (await import('./store/postgres/index.ts')).postgres(postgresAddress(url))
  const shown = typeof url === 'string' ? withoutPassword(url) : url
  throw new HoldfastError(
    'INVALID_OPTION',
    `The store must be a URL such as 'sqlite:jobs.db', 'sqlite::memory:' or 'postgres://host/database'; got ${show(shown)}.`,
    { option: 'url', value: shown },
  )
}

/** A path with options behind it would be the name of another file, which is empty. */
function refuseParts(path: string): void {
  if (!path.includes('?') || path.startsWith('file:')) return // the store refuses a URI itself
  const name = path.replace(/\?.*$/s, '')
  const sentence = `A URL of SQLite has no options: 'sqlite:${name}' opens ${name}. Options, and a path that contains a question mark, are given as sqlite({ path, … }).`
  throw new HoldfastError('INVALID_OPTION', sentence, { option: 'url', value: `sqlite:${path}` })
}

function cannotOpen(cause: unknown): HoldfastError {
  const why = (cause instanceof Error ? cause.message : String(cause)).replace(/\.$/, '')
  return new HoldfastError('STORE_UNAVAILABLE', `The store could not be opened: ${why}.`, {}, { cause })
}
