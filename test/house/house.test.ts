// The repository speaks of itself alone: nothing in it depends on, or mentions, the machine where it was written.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { manifest, root } from '../support/checkout.ts'

const foreign: Readonly<Record<string, RegExp>> = {
  'a path of one machine': /(?<![\w.@~-])\/(?:work|workspace|root|home|Users|mnt)\/[\w.-]+/,
  'a package registry host': /\bregistry[.][a-z0-9-]+[.][a-z]+|\/api\/npm\//i,
}

const files = repositoryFiles()
const skip = files ? false : 'not a git checkout'

test('no file names a machine path or a registry host', { skip }, () => {
  assert.deepEqual((files ?? []).flatMap(foreignIn), [])
})

test('the check finds machine paths and registry hosts', () => {
  const path = ['', 'home', 'app', 'holdfast'].join('/')
  const host = ['https://registry', 'example', 'org/zod'].join('.')
  const found = Object.values(foreign).map((pattern) => [path, host, 'src/home/page.ts'].map((s) => pattern.test(s)))
  assert.deepEqual(found, [
    [true, false, false],
    [false, true, false],
  ])
})

for (const file of ['package-lock.json', 'bench/peers/package-lock.json', 'bench/flows/package-lock.json']) {
  test(`${file} names what to install, not from where`, () => assertNoHost(file))
}

test('the lock file is of this version', () => {
  assert.equal(JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).version, manifest.version)
})

function assertNoHost(file: string): void {
  const lock = JSON.parse(readFileSync(join(root, file), 'utf8'))
  const entries = Object.entries<{ resolved?: string; link?: boolean; integrity?: string }>(lock.packages)
  const located = entries.filter(([, entry]) => entry.resolved !== undefined).map(([name]) => name)
  const unverified = entries.filter(([name, { integrity, link }]) => name && !link && !integrity).map(([name]) => name)
  assert.deepEqual({ located, unverified }, { located: [], unverified: [] })
}

function foreignIn(file: string): string[] {
  const text = readFileSync(join(root, file), 'utf8')
  if (text.includes('\0')) return []
  return text.split('\n').flatMap((line, index) =>
    Object.entries(foreign)
      .filter(([, pattern]) => pattern.test(line))
      .map(([what]) => `${file}:${index + 1} names ${what}: ${line.trim().slice(0, 120)}`),
  )
}

// Files that are tracked, and files that the next `git add` would track.
function repositoryFiles(): string[] | undefined {
  if (!existsSync(join(root, '.git'))) return undefined
  const list = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '-z'], { cwd: root })
  return list
    .toString()
    .split('\0')
    .filter((file) => file !== '' && existsSync(join(root, file)))
}
