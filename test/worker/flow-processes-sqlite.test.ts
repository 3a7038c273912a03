import { flowProcessTests } from './flow-processes.ts'
import { sqliteSharedStore } from './shared-store.ts'

flowProcessTests(sqliteSharedStore)
