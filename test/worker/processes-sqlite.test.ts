import { sqliteGround } from './ground.ts'
import { processTests } from './processes.ts'

processTests(sqliteGround)
