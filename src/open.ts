import { type Clock, systemClock } from './clock.ts'
import { show } from './duration.ts'
import { HoldfastError } from './errors.ts'
import { Holdfast } from './holdfast.ts'
import { postgres } from './store/postgres/index.ts'
import { sqlite } from './store/sqlite/index.ts'
import type { Store } from './store/store.ts'

export interface OpenOptions {
  /** Where the store takes its time from; a virtual clock stands in under test. */
  readonly clock?: Clock
}

/** What `open` takes instead of a URL: `sqlite({ path })`, `postgres({ pool, schema })`. */
export type StoreOpener = (options: { readonly clock: Clock }) => Promise<Store>

/** `open('sqlite:jobs.db')`, `open('sqlite::memory:')`, `open('postgres://…')`, or `open(postgres({ pool, schema }))`. */
export async function open(target: string | StoreOpener, options: OpenOptions = {}): Promise<Holdfast> {
  const opener = typeof target === 'function' ? target : openerOf(target)
  return new Holdfast(await opener({ clock: options.clock ?? systemClock }))
}

function openerOf(url: unknown): StoreOpener {
  if (typeof url === 'string' && url.startsWith('sqlite:')) {
    const path = url.slice('sqlite:'.length).replace(/^\/\//, '')
    if (path !== '') return sqlite({ path })
  }
  if (typeof url === 'string' && /^postgres(ql)?:\/\//.test(url)) return postgres({ url })
  throw new HoldfastError(
    'INVALID_OPTION',
    `open() takes a store URL such as 'sqlite:jobs.db', 'sqlite::memory:' or 'postgres://host/database'; got ${show(url)}.`,
    { option: 'url', value: url },
  )
}
