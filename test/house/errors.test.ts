// docs/reference/errors.md explains every error code, and every code is used.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { root } from '../support/checkout.ts'

const codes = codesIn(read('src/errors.ts'))
const page = read('docs/reference/errors.md')

test('every error code has a row of its own, or shares one, in the table of errors', () => {
  assert.ok(codes.length > 20)
  const explained = page
    .split('\n')
    .filter((line) => line.startsWith('| `'))
    .flatMap((line) => Array.from((line.split('|')[1] ?? '').matchAll(/`([A-Z_]+)`/g), ([, code]) => code))
  assert.deepEqual(explained.toSorted(), codes.toSorted())
})

test('every error code is used outside of its list', () => {
  const source = globSync('src/**/*.ts', { cwd: root })
    .filter((file) => file !== join('src', 'errors.ts'))
    .map(read)
    .join('\n')
  assert.deepEqual(
    codes.filter((code) => !source.includes(`'${code}'`)),
    [],
  )
})

test('every code that the pages name exists', () => {
  const named = ['README.md', ...globSync('docs/{concepts,guides,reference}/*.md', { cwd: root })].flatMap((file) =>
    Array.from(
      read(file).matchAll(/(?:(?:refused|fails|rejects|ends|is) with|throws|gets?|is) `([A-Z]+_[A-Z_]+)`/g),
      ([, code]) => code ?? '',
    ),
  )
  assert.ok(named.length > 20)
  assert.deepEqual(
    [...new Set(named)].filter((code) => !codes.includes(code)),
    [],
  )
})

function codesIn(source: string): string[] {
  const list = /export type ErrorCode =([\s\S]*?)\n\n/.exec(source)?.[1] ?? ''
  return Array.from(list.matchAll(/'([A-Z_]+)'/g), ([, code]) => code ?? '')
}

function read(file: string): string {
  return readFileSync(join(root, file), 'utf8')
}
