import { sqliteFileConformance } from './sqlite-file.ts'

sqliteFileConformance('node:sqlite')
