// Installs what system tests need and this machine lacks: Debian packages, and from npm older PostgreSQL servers, Deno and Bun.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { nativeOf, type OlderVersion, olderVersions, packageOf, prefixOf } from '../support/postgres-versions.ts'
import { type Runtime, runtimeBinary, runtimePackage, runtimePrefix, runtimes } from '../support/runtimes.ts'
import { isInstalled, type SystemNeed, systemNeeds } from '../support/system.ts'

const missing = Object.values<SystemNeed>(systemNeeds).filter((need) => !isInstalled(need))

if (missing.length > 0) {
  const packages = missing.map((need) => need.debianPackage)
  console.log(`Installing ${packages.join(', ')}`)
  apt('update')
  apt('install', '--yes', '--no-install-recommends', ...packages)
}

for (const version of Object.keys(olderVersions).map(Number) as OlderVersion[]) {
  if (existsSync(nativeOf(version))) continue
  console.log(`Installing PostgreSQL ${version}`)
  npmInstall(packageOf(version), prefixOf(version), '--ignore-scripts')
}

for (const runtime of Object.keys(runtimes) as Runtime[]) {
  if (existsSync(runtimeBinary(runtime))) continue
  console.log(`Installing ${runtimePackage(runtime)}`)
  npmInstall(runtimePackage(runtime), runtimePrefix(runtime)) // a script puts the binary in its place
}

function npmInstall(name: string, prefix: string, ...flags: string[]): void {
  mkdirSync(prefix, { recursive: true })
  const quietly = ['--no-audit', '--no-fund', '--no-package-lock', '--loglevel=error', ...flags]
  execFileSync('npm', ['install', '--prefix', prefix, ...quietly, name], { stdio: 'inherit' })
}

function apt(...args: string[]): void {
  const command = ['apt-get', '--quiet', '--quiet', ...args]
  const [program = '', ...rest] = process.getuid?.() === 0 ? command : ['sudo', ...command]
  execFileSync(program, rest, { stdio: 'inherit', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } })
}
