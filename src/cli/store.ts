// Which store, and whether it is there. Opening makes a file that is missing, so a command that only looks checks first.

import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import { HoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { open } from '../open.ts'
import { UsageError } from './command.ts'

/** Opened when it is first asked for, closed if it was. */
export class LazyStore implements AsyncDisposable {
  readonly #open: () => Promise<Holdfast>
  #opened: Promise<Holdfast> | undefined

  constructor(url: string | undefined, rule: { readonly mayCreate: boolean }) {
    this.#open = () => openStore(url, rule)
  }

  open(): Promise<Holdfast> {
    this.#opened ??= this.#open()
    return this.#opened
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const holdfast = await this.#opened?.catch(() => undefined)
    await holdfast?.close()
  }
}

async function openStore(url: string | undefined, { mayCreate }: { mayCreate: boolean }): Promise<Holdfast> {
  if (url === undefined || url === '') {
    throw new UsageError('Say which store: --store sqlite:jobs.db, or set HOLDFAST_STORE.')
  }
  const path = filePath(url)
  if (path !== undefined && !existsSync(path)) {
    if (!mayCreate) throw missing(resolve(path))
    console.error(`holdfast: making a new database at ${resolve(path)}`)
  }
  return open(url)
}

/** The file of a `sqlite:` URL; nothing for a store in memory or another kind of store. */
function filePath(url: string): string | undefined {
  const path = /^sqlite:(?:\/\/)?(.+)$/.exec(url)?.[1]
  return path === ':memory:' ? undefined : path
}

function missing(path: string): HoldfastError {
  return new HoldfastError('STORE_UNAVAILABLE', `There is no database at ${path}; check the path given as the store.`, {
    path,
  })
}
