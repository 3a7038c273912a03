// Every relative link of the pages leads to a file of the repository, and every anchor to a heading of that file. Every page of
// docs/ can be reached from the README.
import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, normalize, relative } from 'node:path'
import test from 'node:test'
import { root } from '../support/checkout.ts'

interface Link {
  readonly line: number
  readonly path: string
  readonly anchor: string
}

const pages = globSync(['*.md', '{docs,src,test,bench,examples}/**/*.md'], {
  cwd: root,
  exclude: ['test/.tmp/**', '**/node_modules/**', 'bench/results/**'],
}).sort()
const read = (file: string) => readFileSync(join(root, file), 'utf8')

test('every relative link leads to a file, and every anchor to a heading', () => {
  assert.ok(pages.includes('README.md') && pages.length > 40)
  assert.deepEqual(
    pages.flatMap((page) => linksIn(read(page)).flatMap((link) => faultOf(page, link) ?? [])),
    [],
  )
})

test('the README leads to every page of docs/, directly or in steps', () => {
  const reached = new Set(['README.md'])
  for (const page of reached) {
    for (const { path } of linksIn(read(page))) {
      const file = targetOf(page, path)
      if (pages.includes(file)) reached.add(file)
    }
  }
  assert.deepEqual(
    pages.filter((page) => page.startsWith('docs/') && !reached.has(page)),
    [],
  )
})

test('every page begins with a title and a sentence', () => {
  const docs = pages.filter((page) => page.startsWith('docs/'))
  assert.deepEqual(
    docs.filter((page) => !/^# .+\n\n(?!```)[A-Z`]/.test(read(page))),
    [],
  )
})

test('the judge of links finds a missing file, a missing anchor and a link inside a code block', () => {
  const fence = '`'.repeat(3)
  const page = `# A \`code()\` title, twice\n\n[one](a.md) ![two](b.svg)\n[three](#x "title") <a href="c.md#y">\n${fence}\n[four](d.md)\n${fence}\n\`[five](e.md)\` [six](https://example.org/f.md)\n## A \`code()\` title, twice`
  assert.deepEqual(linksIn(page), [
    { line: 3, path: 'a.md', anchor: '' },
    { line: 3, path: 'b.svg', anchor: '' },
    { line: 4, path: '', anchor: 'x' },
    { line: 4, path: 'c.md', anchor: 'y' },
  ])
  assert.deepEqual([...anchorsOf(page)], ['a-code-title-twice', 'a-code-title-twice-1'])
  assert.match(faultOf('README.md', { line: 1, path: 'docs/none.md', anchor: '' }) ?? '', /no such file/)
  assert.match(faultOf('README.md', { line: 1, path: 'docs/start.md', anchor: 'none' }) ?? '', /no such heading/)
  assert.equal(faultOf('README.md', { line: 1, path: 'docs/start.md', anchor: 'enqueue' }), undefined)
})

function faultOf(page: string, { line, path, anchor }: Link): string | undefined {
  const file = targetOf(page, path)
  const where = `${page}:${line} ${path}${anchor && `#${anchor}`}`
  if (file.startsWith('..') || !existsSync(join(root, file))) return `${where}: no such file`
  if (anchor === '' || !file.endsWith('.md') || !statSync(join(root, file)).isFile()) return undefined
  return anchorsOf(read(file)).has(anchor) ? undefined : `${where}: no such heading`
}

function targetOf(page: string, path: string): string {
  return path === '' ? page : relative(root, normalize(join(root, dirname(page), decodeURI(path))))
}

/** Relative links outside of code, as Markdown and as HTML. */
function linksIn(text: string): Link[] {
  return withoutCode(text)
    .split('\n')
    .flatMap((line, at) =>
      Array.from(
        line.matchAll(/\]\(([^)\s]+)[^)]*\)|(?:href|src)="([^"]+)"/g),
        ([, markdown, html]) => markdown ?? html ?? '',
      )
        .filter((target) => !/^[a-z][a-z0-9+.-]*:/i.test(target))
        .map((target) => {
          const [path = '', anchor = ''] = target.split('#')
          return { line: at + 1, path, anchor }
        }),
    )
}

/** The anchors that GitHub gives to headings: lower case, without punctuation, a number at the second of two equal ones. */
function anchorsOf(text: string): Set<string> {
  const seen = new Map<string, number>()
  const headings = Array.from(withoutFences(text).matchAll(/^#{1,6} +(.+?) *#*$/gm), ([, title]) => title ?? '')
  return new Set(
    headings.map((title) => {
      const shown = title.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
      const anchor = shown
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
        .replaceAll(' ', '-')
      const count = seen.get(anchor) ?? 0
      seen.set(anchor, count + 1)
      return count === 0 ? anchor : `${anchor}-${count}`
    }),
  )
}

function withoutCode(text: string): string {
  return withoutFences(text).replaceAll(/(`+)[^\n]*?\1/g, '')
}

/** Lines of fenced blocks become empty, so that other lines keep their numbers. */
function withoutFences(text: string): string {
  return text.replaceAll(/^( *)(`{3,})[^\n]*\n[\s\S]*?^ *\2$/gm, (block) => block.replaceAll(/[^\n]/g, ''))
}
