// docs/reference/api.md, generated from the types: every name that an entry point exports, with its declaration and its comments.
// UPDATE_GOLDEN=1 npm test -- test/house/reference.test.ts writes it.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { root } from '../support/checkout.ts'

const entries: readonly (readonly [name: string, file: string])[] = [
  ['holdfast', 'index.d.ts'],
  ['holdfast/adapters', 'adapters/index.d.ts'],
  ['holdfast/metrics', 'observe/metrics.d.ts'],
  ['holdfast/server', 'server/index.d.ts'],
  ['holdfast/testing', 'testing/index.d.ts'],
]

/** Classes whose constructors are not public. */
const withoutConstructor = ['Gate', 'HandlerJob', 'Holdfast', 'Job', 'Kv', 'Lease', 'Queue', 'Resource', 'Worker']

/** Writes the declarations of the package into this folder and builds the page from them. */
export function referencePage(folder: string): string {
  const tsc = join(root, 'node_modules/.bin/tsc')
  execFileSync(tsc, ['-p', join(root, 'tsconfig.build.json'), '--emitDeclarationOnly', '--outDir', folder])
  const parts = entries.map(([name, file]) => ({ name, names: exportsOf(join(folder, file)) }))
  const contents = parts.map(({ name, names }) => {
    const links = names.map((each) => `[${each.name}](#${each.name.toLowerCase()})`)
    return `- \`${name}\`: ${links.join(', ')}`
  })
  const sections = parts.flatMap(({ name, names }) => [`## ${name}`, ...names.map(sectionOf)])
  return `${[head, contents.join('\n'), ...sections].join('\n\n')}\n`
}

const head = `# API

Everything the package exports, as it is declared. It is made from the types; the guides say how the parts work together.`

interface Exported {
  readonly name: string
  readonly declaration: string
}

function sectionOf({ name, declaration }: Exported): string {
  const comment = /^\/\*\*([\s\S]*?)\*\/\n/.exec(declaration)
  const body = declaration.slice(comment?.[0].length ?? 0)
  const code = name === 'Holdfast' ? withHeadings(body) : body
  const said = comment ? `${textOf(comment[1] as string)}\n\n` : ''
  return `### ${name}\n\n${said}\`\`\`tsx\n${code}\n\`\`\``
}

/** Declarations keep no headings, so those of the class (`// ── Queues ──`) are set again before the member that they precede. */
function withHeadings(body: string): string {
  const source = readFileSync(join(root, 'src/holdfast.ts'), 'utf8')
  const headed = /^ {2}\/\/ ── (.+) ──\n\s*(?:\/\*\*(?:(?!\*\/)[\s\S])*\*\/\s*)?(?:async |get )?(\w+)/gm
  const headings = new Map([...source.matchAll(headed)].map(([, heading, member]) => [member, heading]))
  const members = /^(?: {2}\/\*\*(?:(?!\*\/)[\s\S])*?\*\/\n)? {2}(?:readonly |get )?(\w+)/gm
  return body.replaceAll(members, (member, name) => {
    const heading = headings.get(name)
    headings.delete(name)
    return heading === undefined ? member : `\n  // ${heading}\n${member}`
  })
}

function textOf(comment: string): string {
  return comment
    .split('\n')
    .map((line) => line.replace(/^\s*\* ?/, '').trim())
    .join('\n')
    .trim()
}

function exportsOf(file: string): Exported[] {
  const text = readFileSync(file, 'utf8')
  const passedOn = [...text.matchAll(/^export (?:type )?\{([^}]*)\} from '([^']*)'/gm)].flatMap(([, names, from]) => {
    const source = readFileSync(join(dirname(file), (from as string).replace(/\.ts$/, '.d.ts')), 'utf8')
    return namesIn(names as string).map((name) => ({ name, declaration: declarationIn(source, name) }))
  })
  const own = [...text.matchAll(/^export (?:declare )?(?:class|interface|type|function|const) (\w+)/gm)].map(
    ([, name]) => ({ name: name as string, declaration: declarationIn(text, name as string) }),
  )
  return [...passedOn, ...distinct(own)].sort((a, b) => a.name.localeCompare(b.name, 'en'))
}

function namesIn(list: string): string[] {
  const names = list.split(',').map((each) => each.trim().replace(/^type /, ''))
  return names.filter((name) => name !== '')
}

/** Overloads of a function are one declaration. */
function distinct(exported: readonly Exported[]): Exported[] {
  return [...new Map(exported.map((each) => [each.name, each])).values()]
}

function declarationIn(source: string, name: string): string {
  const start = new RegExp(
    `(?:/\\*\\*(?:(?!\\*/)[\\s\\S])*\\*/\\n)?export (?:declare )?(?:class|interface|type|function|const) ${name}\\b`,
    'g',
  )
  const parts = [...source.matchAll(start)].map((match) => source.slice(match.index, endOf(source, match)))
  if (parts.length === 0) throw new Error(`${name} is exported, and declared nowhere.`)
  return parts.map((part) => tidy(part, name)).join('\n')
}

/** The end of the line that closes the brackets of the declaration. */
function endOf(source: string, match: RegExpExecArray): number {
  let depth = 0
  for (let at = match.index + match[0].length; at < source.length; at++) {
    const character = source[at] as string
    if ('{(['.includes(character)) depth += 1
    if ('})]'.includes(character)) depth -= 1
    const isEnd = depth === 0 && (character === ';' || (character === '}' && source[at + 1] === '\n'))
    if (isEnd) return at + 1
  }
  return source.length
}

function tidy(declaration: string, name: string): string {
  const isHidden = (line: string) =>
    /^ +(?:#private|private )/.test(line) || (withoutConstructor.includes(name) && /^ +constructor\(/.test(line))
  return declaration
    .split('\n')
    .filter((line) => !isHidden(line))
    .join('\n')
    .replace(/export declare |export /, '')
    .replaceAll('    ', '  ')
    .replace(/;$/gm, '')
    .trim()
}
