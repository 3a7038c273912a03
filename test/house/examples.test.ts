// Every TypeScript example in the README and the docs compiles and runs, each as its own program in an empty directory. Every npm
// command that they name exists. If an example names a PostgreSQL database (`postgres://…/app`), it gets an empty database in its
// place.
import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { mkdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { after, before } from 'node:test'
import { manifest, root, tsc } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { type Scratch, scratchDirectory } from '../support/scratch.ts'
import { run, runOk } from '../support/shell.ts'

interface Example {
  readonly file: string
  readonly line: number
  readonly code: string
}

const exampleTimeoutMs = 30_000
const postgresUrl = /postgres:\/\/[^\s'"`?]+/g
const pages = [
  'README.md',
  'ARCHITECTURE.md',
  'CONTRIBUTING.md',
  ...globSync('docs/**/*.md', { cwd: root }).sort(),
].filter((page) => existsSync(join(root, page)))
const examples = pages.flatMap((page) => examplesIn(page, readFileSync(join(root, page), 'utf8')))

let project: Scratch
before(async () => {
  project = await projectOf(examples)
})
after(() => project[Symbol.asyncDispose]())

test('the README has an example', () => {
  assert.ok(examples.some((example) => example.file === 'README.md'))
})

test('every example compiles', async () => {
  const { code, stdout, stderr } = await run(process.execPath, [tsc, '-p', project.path], { cwd: project.path })
  assert.equal(code, 0, stdout + stderr)
})

for (const example of examples) {
  test(`the example at ${example.file}:${example.line} runs`, async () => {
    await using directory = await scratchDirectory()
    await using database = usesPostgres(example) ? await testDatabase() : undefined
    const program = join(project.path, database ? `with-database-${programOf(example)}` : programOf(example))
    if (database) await writeFile(program, paddedCode(example).replaceAll(postgresUrl, database.url))
    await runOk(process.execPath, [program], { cwd: directory.path, timeoutMs: exampleTimeoutMs })
  })
}

test('a PostgreSQL example keeps what follows the database in its URL', () => {
  const code = "open('postgres://app:secret@db.example:5432/app?schema=jobs'); open('postgres://localhost/app')"
  assert.ok(usesPostgres({ file: 'page.md', line: 1, code }))
  assert.equal(
    code.replaceAll(postgresUrl, 'postgres://here/x'),
    "open('postgres://here/x?schema=jobs'); open('postgres://here/x')",
  )
})

test('every npm script that the pages name exists', () => {
  const missing = pages.flatMap((page) =>
    npmScriptsIn(readFileSync(join(root, page), 'utf8'))
      .filter((script) => manifest.scripts[script] === undefined)
      .map((script) => `${page}: npm run ${script}`),
  )
  assert.deepEqual(missing, [])
})

test('the parser of pages finds examples, their lines, and npm scripts', () => {
  const fence = '`'.repeat(3)
  const page = `# Title\n\n${fence}ts title=first.ts\nconst one = 1\n${fence}\n\n- item\n  ${fence}ts\n  two()\n    deeper()\n  ${fence}\n${fence}js\nthree()\n${fence}\n\`npm test\`, npm run build:all -- x, npm start`
  assert.deepEqual(examplesIn('page.md', page), [
    { file: 'page.md', line: 4, code: 'const one = 1\n' },
    { file: 'page.md', line: 9, code: 'two()\n  deeper()\n' },
  ])
  assert.deepEqual(npmScriptsIn(page).sort(), ['build:all', 'start', 'test'])
})

function usesPostgres({ code }: Example): boolean {
  return code.includes('postgres://')
}

function examplesIn(file: string, page: string): Example[] {
  const fences = page.matchAll(/^( *)```(?:ts|typescript)\b[^\n]*\n([\s\S]*?)^ *```$/gm)
  return Array.from(fences, ({ 0: block, 1: margin = '', 2: code = '', index }) => ({
    file,
    line: page.slice(0, index + block.indexOf('\n') + 1).split('\n').length,
    code: code.replace(new RegExp(`^${margin}`, 'gm'), ''),
  }))
}

function npmScriptsIn(page: string): string[] {
  return [...page.matchAll(/\bnpm (?:run ([\w:-]+)|(test|start)\b)/g)].map(([, named, short]) => named ?? short ?? '')
}

// A project inside the checkout, so that examples resolve the packages of the tests. Its `holdfast` has the exports of
// package.json with dist/*.js replaced by src/*.ts: the link leads out of node_modules, and Node runs the source.
async function projectOf(all: readonly Example[]): Promise<Scratch> {
  const scratch = await scratchDirectory(join(root, 'test/.tmp'))
  const holdfast = join(scratch.path, 'node_modules/holdfast')
  await mkdir(holdfast, { recursive: true })
  await symlink(join(root, 'src'), join(holdfast, 'src'), 'junction')
  await writeFile(join(holdfast, 'package.json'), JSON.stringify({ type: 'module', exports: sourceExports() }))
  await writeFile(join(scratch.path, 'package.json'), JSON.stringify({ type: 'module' }))
  await writeFile(
    join(scratch.path, 'tsconfig.json'),
    JSON.stringify({
      extends: join(root, 'tsconfig.json'),
      // An example may declare a name without using it.
      compilerOptions: { noUnusedLocals: false, noUnusedParameters: false, moduleDetection: 'force' },
      include: ['*.ts'],
      exclude: [],
    }),
  )
  for (const example of all) await writeFile(join(scratch.path, programOf(example)), paddedCode(example))
  return scratch
}

function sourceExports(): Record<string, string> {
  const entries = Object.entries(manifest.exports).flatMap(([name, target]) =>
    typeof target === 'string' ? [] : [[name, target.default.replace('./dist/', './src/').replace(/\.js$/, '.ts')]],
  )
  return Object.fromEntries(entries)
}

function programOf({ file, line }: Example): string {
  return `${file.replaceAll(/[/\\]/g, '-')}-${line}.ts`
}

// On the same line as in its page, so that an error shows the place.
function paddedCode({ line, code }: Example): string {
  return '\n'.repeat(line - 1) + code
}
