import { handlerTests } from './handlers.ts'
import { sqliteSharedStore } from './shared-store.ts'

handlerTests(sqliteSharedStore)
