import { join } from 'node:path'
import { open } from '../../src/open.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { conformance } from './index.ts'
import { sqliteDialect, sqliteHand } from './sql-sqlite.ts'

conformance({
  name: 'sqlite file',
  runsSql: true,
  dialect: sqliteDialect,
  async open() {
    const scratch = await scratchDirectory()
    const clock = new VirtualClock()
    const path = join(scratch.path, 'jobs.db')
    const client = (options = {}) => open(`sqlite:${path}`, { clock, ...options })
    return { clock, client, sql: sqliteHand(path), close: () => scratch[Symbol.asyncDispose]() }
  },
})
