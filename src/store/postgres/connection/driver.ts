// `pg` is loaded when a PostgreSQL store is opened, and not before: a program that only uses SQLite runs without it. That also
// holds for a bundle that leaves `pg` out.

import type { Client, Pool } from 'pg'
import { HoldfastError } from '../../../errors.ts'

export interface Driver {
  readonly Pool: typeof Pool
  readonly Client: typeof Client
}

export async function loadDriver(): Promise<Driver> {
  try {
    return await import('pg')
  } catch (cause) {
    const why = (cause instanceof Error ? cause.message : String(cause)).split('\n')[0]?.replace(/\.$/, '')
    const message = `The PostgreSQL store needs the package pg, which does not load: ${why}. Install pg where the program runs, or bundle it.`
    throw new HoldfastError('STORE_UNAVAILABLE', message, { package: 'pg' }, { cause })
  }
}
