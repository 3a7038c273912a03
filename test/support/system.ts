// What some tests need beyond npm. `npm test` skips those and prints it. `npm run test:system` installs everything listed here
// and then requires it. `npm run test:long` also runs the tests that take many minutes:
//
//   test('an acknowledged enqueue was synced', { skip: needs('strace') }, async () => { … })
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'

export interface SystemNeed {
  readonly command: string
  readonly debianPackage: string
}

export const systemNeeds = {
  strace: { command: 'strace', debianPackage: 'strace' },
  pg_dump: { command: 'pg_dump', debianPackage: 'postgresql-client' },
  pgbouncer: { command: 'pgbouncer', debianPackage: 'pgbouncer' },
} as const satisfies Record<string, SystemNeed>

export function needs(name: keyof typeof systemNeeds): string | false {
  const need = systemNeeds[name]
  if (process.env['HOLDFAST_TEST_SYSTEM'] !== '1') return `needs ${need.command}; npm run test:system installs it`
  if (!isInstalled(need)) throw new Error(`${need.command} is not installed: run npm run test:system`)
  return false
}

/** Whether tests that take many minutes run. */
export const isLong = process.env['HOLDFAST_TEST_LONG'] === '1'

/** For tests that take many minutes. */
export function onlyLong(why: string): string | false {
  return isLong ? false : `${why}; npm run test:long runs it`
}

export function isInstalled({ command }: SystemNeed): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((directory) => isExecutable(join(directory, command)))
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}
