// The second driver of SQLite. `npm test` runs the topics that depend on the driver, `npm run test:long` runs the whole suite.
import { onlyLong } from '../support/system.ts'
import { callerTransactionTests } from './caller-transaction.ts'
import { doctorTests } from './doctor.ts'
import { conformance, type Topic, topics } from './index.ts'
import { sqlEffectTests } from './sql-effects.ts'
import { sqliteFile } from './sqlite-file.ts'

const store = sqliteFile('better-sqlite3')
const ofDriver: readonly Topic[] = [sqlEffectTests, callerTransactionTests, doctorTests]

conformance(store, { only: ofDriver })
conformance(store, {
  only: topics.filter((topic) => !ofDriver.includes(topic)),
  skip: onlyLong('the whole suite on a second driver takes over a minute'),
})
