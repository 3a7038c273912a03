import { postgresGround } from './ground.ts'
import { handlerTests } from './handlers.ts'

handlerTests(postgresGround)
