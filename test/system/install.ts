// Installs the Debian packages that system tests need and this machine lacks.
import { execFileSync } from 'node:child_process'
import { isInstalled, type SystemNeed, systemNeeds } from '../support/system.ts'

const missing = Object.values<SystemNeed>(systemNeeds).filter((need) => !isInstalled(need))

if (missing.length > 0) {
  const packages = missing.map((need) => need.debianPackage)
  console.log(`Installing ${packages.join(', ')}`)
  apt('update')
  apt('install', '--yes', '--no-install-recommends', ...packages)
}

function apt(...args: string[]): void {
  const command = ['apt-get', '--quiet', '--quiet', ...args]
  const [program = '', ...rest] = process.getuid?.() === 0 ? command : ['sudo', ...command]
  execFileSync(program, rest, { stdio: 'inherit', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } })
}
