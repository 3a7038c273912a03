// The repository speaks of itself alone: nothing in it depends on, or tells about, the machine where it was written.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { manifest, root } from '../support/checkout.ts'

const strangers: Readonly<Record<string, RegExp>> = {
  'a path of one machine': /(?<![\w.@~-])\/(?:work|workspace|root|home|Users|mnt)\/[\w.-]+/,
  'a package registry host': /\bregistry[.][a-z0-9-]+[.][a-z]+|\/api\/npm\//i,
}

const files = repositoryFiles()
const skip = files ? false : 'not a git checkout'

test('no file names a machine path or a registry host', { skip }, () => {
  assert.deepEqual((files ?? []).flatMap(strangersIn), [])
})

test('the judge of strangers knows them', () => {
  const path = ['', 'home', 'someone', 'holdfast'].join('/')
  const host = ['https://registry', 'example', 'org/zod'].join('.')
  const found = Object.values(strangers).map((pattern) => [path, host, 'src/home/page.ts'].map((s) => pattern.test(s)))
  assert.deepEqual(found, [
    [true, false, false],
    [false, true, false],
  ])
})

for (const file of ['package-lock.json', 'bench/peers/package-lock.json']) {
  test(`${file} says what to install, not from where`, () => assertPlaceless(file))
}

test('the lock file is of this version', () => {
  assert.equal(JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')).version, manifest.version)
})

function assertPlaceless(file: string): void {
  const lock = JSON.parse(readFileSync(join(root, file), 'utf8'))
  const entries = Object.entries<{ resolved?: string; link?: boolean; integrity?: string }>(lock.packages)
  const located = entries.filter(([, entry]) => entry.resolved !== undefined).map(([name]) => name)
  const unverified = entries.filter(([name, { integrity, link }]) => name && !link && !integrity).map(([name]) => name)
  assert.deepEqual({ located, unverified }, { located: [], unverified: [] })
}

function strangersIn(file: string): string[] {
  const text = readFileSync(join(root, file), 'utf8')
  if (text.includes('\0')) return []
  return text.split('\n').flatMap((line, index) =>
    Object.entries(strangers)
      .filter(([, pattern]) => pattern.test(line))
      .map(([what]) => `${file}:${index + 1} names ${what}: ${line.trim().slice(0, 120)}`),
  )
}

// What is tracked, and what would be by the next `git add`.
function repositoryFiles(): string[] | undefined {
  if (!existsSync(join(root, '.git'))) return undefined
  const list = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '-z'], { cwd: root })
  return list
    .toString()
    .split('\0')
    .filter((file) => file !== '' && existsSync(join(root, file)))
}
