import { sqliteGround } from './ground.ts'
import { handlerTests } from './handlers.ts'

handlerTests(sqliteGround)
