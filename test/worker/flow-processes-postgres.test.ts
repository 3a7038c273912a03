import { flowProcessTests } from './flow-processes.ts'
import { postgresSharedStore } from './shared-store.ts'

flowProcessTests(postgresSharedStore)
