// Deno and Bun, only for `npm run test:system`. It installs them beside the tests, so that they are not a dependency of the
// package.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './checkout.ts'

export const runtimes = {
  deno: { version: '2.9.6', args: ['run', '--allow-all'] },
  bun: { version: '1.4.4', args: ['run'] },
} as const

export type Runtime = keyof typeof runtimes

export function runtimePackage(runtime: Runtime): string {
  return `${runtime}@${runtimes[runtime].version}`
}

export function runtimePrefix(runtime: Runtime): string {
  return join(root, `test/.tmp/${runtime}-${runtimes[runtime].version}`)
}

export function runtimeBinary(runtime: Runtime): string {
  return join(runtimePrefix(runtime), 'node_modules/.bin', runtime)
}

export function needsRuntime(runtime: Runtime): string | false {
  if (process.env['HOLDFAST_TEST_SYSTEM'] !== '1') return `needs ${runtime}; npm run test:system installs it`
  if (!existsSync(runtimeBinary(runtime))) throw new Error(`${runtime} is not installed: run npm run test:system`)
  return false
}
