import { type Clock, systemClock } from './clock.ts'
import { show } from './duration.ts'
import { HoldfastError } from './errors.ts'
import { Holdfast } from './holdfast.ts'
import { sqlite } from './store/sqlite/index.ts'
import type { Store } from './store/store.ts'

export interface OpenOptions {
  /** Where the store takes its time from; a virtual clock stands in under test. */
  readonly clock?: Clock
}

/** What `open` takes instead of a URL: `sqlite({ path })`. */
export type StoreOpener = (options: { readonly clock: Clock }) => Promise<Store>

/** `open('sqlite:jobs.db')`, `open('sqlite::memory:')`, or `open(sqlite({ path }))`. */
export async function open(target: string | StoreOpener, options: OpenOptions = {}): Promise<Holdfast> {
  const opener = typeof target === 'function' ? target : openerOf(target)
  return new Holdfast(await opener({ clock: options.clock ?? systemClock }))
}

function openerOf(url: unknown): StoreOpener {
  if (typeof url === 'string' && url.startsWith('sqlite:')) {
    const path = url.slice('sqlite:'.length).replace(/^\/\//, '')
    if (path !== '') return sqlite({ path })
  }
  throw new HoldfastError(
    'INVALID_OPTION',
    `open() takes a store URL such as 'sqlite:jobs.db' or 'sqlite::memory:'; got ${show(url)}.`,
    { option: 'url', value: url },
  )
}
