import { conformance } from './index.ts'
import { sqliteFile } from './sqlite-file.ts'

conformance(sqliteFile('node:sqlite'))
