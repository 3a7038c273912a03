import { HoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { checkOptions } from '../job/names.ts'
import { type OpenOptions, open } from '../open.ts'
import { show } from '../runtime/duration.ts'
import { type DatabaseSync, sqliteInMemory } from '../store/sqlite/index.ts'
import { VirtualClock, type VirtualClockOptions } from './virtual-clock.ts'

export interface InMemoryOptions extends VirtualClockOptions {
  /** What time it is in the beginning; the first day of 2030 unless given. */
  readonly startAt?: Date | number
  /** Where log lines go; nowhere unless given. */
  readonly logger?: OpenOptions['logger']
  /** Makes the application's own tables, for SQL effects: statements, or a function that is given the connection. */
  readonly setup?: string | ((db: DatabaseSync) => unknown)
}

export interface InMemory {
  readonly holdfast: Holdfast
  readonly clock: VirtualClock
  /**
   * The one connection to the database, which the store itself uses: a test reads through it what SQL effects wrote.
   * A transaction that a test begins on it ends before the next call to the store.
   */
  readonly db: DatabaseSync
}

/** A store in memory on a virtual clock: nothing on disk, nothing to wait for. */
export async function openInMemory(options: InMemoryOptions = {}): Promise<InMemory> {
  checkOptions(options, 'options', ['startAt', 'timers', 'logger', 'setup'])
  const { startAt, logger = false, setup = '', ...clockOptions } = options
  if (typeof setup !== 'string' && typeof setup !== 'function') {
    const message = `setup is SQL text, or a function that is given the connection; got ${show(setup)}.`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'setup' })
  }
  const clock = new VirtualClock(startAt, clockOptions)
  const opened = Promise.withResolvers<DatabaseSync>()
  const holdfast = await open(sqliteInMemory(opened.resolve), { clock, logger })
  const db = await opened.promise
  try {
    if (typeof setup === 'string') db.exec(setup)
    else await setup(db)
    if (db.isTransaction)
      throw new HoldfastError('INVALID_OPTION', 'setup left a transaction open; end it.', { option: 'setup' })
  } catch (error) {
    if (db.isTransaction) db.exec('rollback') // else nothing can be closed in good order
    await holdfast.close()
    throw error
  }
  return { holdfast, clock, db }
}
