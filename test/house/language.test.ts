// One plain language: words that were retired stay out, and comments fit beside code. docs/glossary.md has the words that are used
// instead.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { root } from '../support/checkout.ts'

const commentMaxChars = 130

/** A sentence has a thing of ours as its subject: "the sweep", "a claim", "the caller". */
const people = 'who whoever whom somebody someone nobody anybody everybody everyone he him his'

/** Names of things that have another name now, in any spelling: `Desk`, `#desk`, `desks`. */
const retired =
  'desk clerk knock attend shelf obey helm backstage turnstile deafen armour hasty patiently lapsed haunt steer untold meddle witness'

const peopleWords = new RegExp(`(?<![\\w'-])(?:${people.split(' ').join('|')})(?![\\w'-])`, 'i')
const retiredWords = new RegExp(retired.split(' ').map(spellingsOf).join('|'))

/** A word alone or in a name, in lower case or capitalised: desk, Desks, #desk, isHasty, steerBatch. */
function spellingsOf(word: string): string {
  const capitalised = `${word.slice(0, 1).toUpperCase()}${word.slice(1)}`
  return `(?:(?<![A-Za-z])${word}|${capitalised})(?:s|es|ed|ing)?(?![a-z])`
}

const self = 'test/house/language.test.ts'

test('no sentence and no name uses a retired word', () => {
  const found = textFiles().flatMap((file) =>
    linesOf(file).flatMap((line, at) => {
      const word = (peopleWords.exec(line) ?? retiredWords.exec(line))?.[0]
      return word === undefined ? [] : [`${file}:${at + 1} ${word}: ${line.trim().slice(0, 100)}`]
    }),
  )
  assert.deepEqual(found, [])
})

test('the judge of words knows a retired one when it sees it', () => {
  const good = ['a job whose lease expired', 'eyewitness', 'attendance', 'where', 'she', 'history', "who's", '--who']
  const bad = [
    'Who paused first has.',
    'somebody',
    '#desk',
    'isHasty',
    'the lapsed',
    'steerBatch',
    'knocks',
    'Whoever attends',
  ]
  const isFound = (line: string) => peopleWords.test(line) || retiredWords.test(line)
  assert.deepEqual([good.filter(isFound), bad.filter((line) => !isFound(line))], [[], []])
})

test(`no line of a comment is longer than ${commentMaxChars} characters`, () => {
  const code = textFiles().filter((file) => file.endsWith('.ts'))
  const found = code.flatMap((file) =>
    linesOf(file).flatMap((line, at) =>
      /^\s*(?:\/\/|\/?\*|--)/.test(line) && line.length > commentMaxChars
        ? [`${file}:${at + 1} ${line.length} characters`]
        : [],
    ),
  )
  assert.deepEqual(found, [])
})

function textFiles(): string[] {
  const folders = ['src', 'test', 'docs', 'bench', 'examples', 'bin']
  const files = globSync(['*.md', ...folders.map((folder) => `${folder}/**/*.{ts,md,js,mjs,sql}`)], {
    cwd: root,
    exclude: ['test/.tmp/**', '**/node_modules/**', 'bench/results/**', self],
  })
  return files.sort()
}

function linesOf(file: string): string[] {
  return readFileSync(join(root, file), 'utf8').split('\n')
}
