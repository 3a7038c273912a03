// A store in a file, with either driver.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { open } from '../../src/open.ts'
import type { SqliteDriver } from '../../src/store/sqlite/connection/driver.ts'
import { sqliteOn } from '../../src/store/sqlite/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { warmThread } from '../support/warm-thread.ts'
import { connectBy, sqliteApplication, sqliteDialect } from './sql-sqlite.ts'
import type { KeptText, Overwrite, StoreUnderTest } from './world.ts'

export function sqliteFile(driver: SqliteDriver): StoreUnderTest {
  return {
    name: driver === 'node:sqlite' ? 'sqlite file' : `sqlite file with ${driver}`,
    runsSql: true,
    dialect: sqliteDialect,
    canBeDamaged: true,
    async open() {
      const scratch = await scratchDirectory()
      const clock = new VirtualClock()
      const path = join(scratch.path, 'jobs.db')
      const client = (options = {}) =>
        open(sqliteOn(warmThread, { path, driver }), { clock, logger: false, ...options })
      const store = () => sqliteOn(warmThread, { path, driver })({ clock })
      const overwrite: Overwrite = async (part, id, text) => {
        const db = connectBy(driver, path)
        const { changes } = db.prepare(statements[part]).run(text, id) as { changes: number }
        assert.equal(changes, 1, `${part} of ${id} is there to be overwritten`)
        db.close()
      }
      return {
        clock,
        client,
        store,
        sql: sqliteApplication(path, driver),
        overwrite,
        close: () => scratch[Symbol.asyncDispose](),
      }
    },
  }
}

const ofJob = (part: KeptText) => `update holdfast_job set ${part} = ? where id = ?`
const ofEnded = (part: KeptText) =>
  `update holdfast_ended set ${part} = ? where seq = (select seq from holdfast_job where id = ?)`
const statements: Readonly<Record<KeptText, string>> = {
  payload: ofJob('payload'),
  headers: ofJob('headers'),
  past: ofJob('past'),
  cancel: ofJob('cancel'),
  result: ofEnded('result'),
  error: ofEnded('error'),
  value: 'update holdfast_kv set value = ? where key = ?',
}
