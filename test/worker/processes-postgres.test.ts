import { postgresGround } from './ground.ts'
import { processTests } from './processes.ts'

processTests(postgresGround)
