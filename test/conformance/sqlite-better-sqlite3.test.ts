import { sqliteFileConformance } from './sqlite-file.ts'

sqliteFileConformance('better-sqlite3')
