import { processTests } from './processes.ts'
import { sqliteSharedStore } from './shared-store.ts'

processTests(sqliteSharedStore)
