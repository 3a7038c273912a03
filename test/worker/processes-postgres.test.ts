import { processTests } from './processes.ts'
import { postgresSharedStore } from './shared-store.ts'

processTests(postgresSharedStore)
