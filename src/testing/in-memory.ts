import { HoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { checkOptions } from '../job/names.ts'
import { type OpenOptions, open } from '../open.ts'
import { show } from '../runtime/duration.ts'
import { type DatabaseSync, sqliteInMemory } from '../store/sqlite/index.ts'
import { VirtualClock, type VirtualClockOptions } from './virtual-clock.ts'

export interface InMemoryOptions extends VirtualClockOptions {
  /** The time at the start; default: the first day of 2030. */
  readonly startAt?: Date | number
  /** Receives log lines; default: they are dropped. */
  readonly logger?: OpenOptions['logger']
  /** Creates the application's own tables, for SQL effects: SQL text, or a function that takes the connection. */
  readonly setup?: string | ((db: DatabaseSync) => unknown)
}

export interface InMemory {
  readonly holdfast: Holdfast
  readonly clock: VirtualClock
  /**
   * The only connection to the database. A test can read with it which rows SQL effects wrote. The store uses it too, so a
   * transaction that a test begins on it must end before the next call to the store.
   */
  readonly db: DatabaseSync
}

/** A store in memory on a virtual clock: it writes no file, and a test need not wait. */
export async function openInMemory(options: InMemoryOptions = {}): Promise<InMemory> {
  checkOptions(options, 'options', ['startAt', 'timers', 'logger', 'setup'])
  const { startAt, logger = false, setup = '', ...clockOptions } = options
  if (typeof setup !== 'string' && typeof setup !== 'function') {
    const message = `setup is SQL text, or a function that takes the connection; got ${show(setup)}.`
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
    if (db.isTransaction) db.exec('rollback') // the store cannot close while a transaction is open
    await holdfast.close()
    throw error
  }
  return { holdfast, clock, db }
}
