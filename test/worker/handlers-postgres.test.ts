import { handlerTests } from './handlers.ts'
import { postgresSharedStore } from './shared-store.ts'

handlerTests(postgresSharedStore)
