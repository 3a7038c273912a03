// Imports point one way: runtime, job ← protocol ← store ← queue, lease, client, worker, … ← observe ← server, cli, testing ←
// dashboard, apps.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join, posix } from 'node:path'
import test from 'node:test'
import { root } from '../support/checkout.ts'

// Each layer may import from itself and from the layers above it in this table, unless `only` narrows that down.
// A name is a folder of src/, or a file of its root. apps/ is beside src/ and uses only the entry points. Folders that do not
// exist yet are listed already.
const layers: readonly Layer[] = [
  { names: ['errors.ts', 'runtime'] },
  { names: ['job'], only: ['errors.ts', 'runtime/duration.ts', 'job'] },
  { names: ['adapters'], only: ['errors.ts', 'runtime/duration.ts', 'adapters'] },
  { names: ['protocol'], only: ['errors.ts', 'runtime', 'job', 'protocol'] },
  { names: ['store'] },
  {
    names: [
      ...['events.ts', 'queue', 'lease', 'client', 'worker'],
      ...['sweep', 'batch', 'flow', 'schedule', 'kv', 'webhook'],
    ],
  },
  { names: ['observe'] },
  { names: ['wiring.ts', 'holdfast.ts', 'open.ts'] },
  { names: ['index.ts'] },
  { names: ['testing'] },
  { names: ['server', 'cli'] },
  { names: ['dashboard'], only: ['protocol', 'dashboard'] },
  { names: ['apps'], only: ['index.ts', 'testing', 'server', 'apps'] },
]

// Each external dependency is used in one place: a package or Node module on the left is imported only from the right.
const reserved: Readonly<Record<string, readonly string[]>> = {
  'node:sqlite': ['store/sqlite/'],
  'better-sqlite3': ['store/sqlite/'],
  pg: ['store/postgres/'],
  croner: ['schedule/'],
  hono: ['server/'],
  'prom-client': ['observe/'],
  '@opentelemetry/api': ['observe/'],
  // recognised by their shape: an application that uses one has it installed
  'drizzle-orm': [],
  kysely: [],
  knex: [],
  '@prisma/client': [],
  postgres: [],
}

const bannedNames = /^(utils?|helpers?|managers?|types?|common|misc|shared)$/i

interface Layer {
  readonly names: readonly string[]
  readonly only?: readonly string[]
}

interface Import {
  readonly from: string
  readonly to: string
}

test('imports in src/ and apps/ point one way', () => {
  assert.deepEqual(sourceFiles().flatMap(importsOf).flatMap(faultOf), [])
})

test('every file and folder of src/ is in a layer, and none has a catch-all name', () => {
  const files = sourceFiles()
  const unplaced = files.filter((file) => layerOf(file) === undefined)
  const banned = files.filter((file) => file.split('/').some((part) => bannedNames.test(part.replace(/\.\w+$/, ''))))
  assert.deepEqual({ unplaced, banned }, { unplaced: [], banned: [] })
})

test('the check finds a bad import', () => {
  const good: Import[] = [
    { from: 'job/codec.ts', to: 'errors.ts' },
    { from: 'store/sqlite/claim.ts', to: 'job/states.ts' },
    { from: 'store/sqlite/claim.ts', to: 'store/store.ts' },
    { from: 'store/sqlite/claim.ts', to: 'node:sqlite' },
    { from: 'worker/run.ts', to: 'queue/queue.ts' },
    { from: 'adapters/knex.ts', to: 'errors.ts' },
    { from: 'queue/enqueue.ts', to: 'adapters/hint.ts' },
    { from: 'apps/crawler/main.ts', to: 'index.ts' },
  ]
  const bad: Import[] = [
    { from: 'errors.ts', to: 'job/states.ts' },
    { from: 'job/codec.ts', to: 'node:crypto' },
    { from: 'job/codec.ts', to: 'zod' },
    { from: 'job/codec.ts', to: 'runtime/clock.ts' },
    { from: 'job/codec.ts', to: 'store/store.ts' },
    { from: 'store/store.ts', to: 'queue/queue.ts' },
    { from: 'store/sqlite/claim.ts', to: 'store/postgres/claim.ts' },
    { from: 'worker/run.ts', to: 'node:sqlite' },
    { from: 'open.ts', to: 'pg' },
    { from: 'adapters/knex.ts', to: 'queue/enqueue.ts' },
    { from: 'adapters/knex.ts', to: 'knex' },
    { from: 'store/sqlite/claim.ts', to: 'pg' },
    { from: 'sweep/rescue.ts', to: 'observe/log.ts' },
    { from: 'holdfast.ts', to: 'cli/main.ts' },
    { from: 'protocol/routes.ts', to: 'store/store.ts' },
    { from: 'dashboard/main.ts', to: 'holdfast.ts' },
    { from: 'apps/crawler/main.ts', to: 'store/store.ts' },
  ]
  assert.deepEqual(good.flatMap(faultOf), [])
  assert.deepEqual(
    bad.filter((each) => faultOf(each).length === 0),
    [],
  )
})

test('the check reads every form of import', () => {
  const source = `import './one.ts'
import { a } from './two.ts'
import type {
  B,
  C,
} from './three.ts'
export * from '../four.ts'
export { d } from "./five.ts"
const e = await import('./six.ts')
type F = import('./seven.ts').F
const g = new Worker(new URL('./eight.ts', import.meta.url))
import fs from 'node:fs'
// import { h } from './not-me.ts'`
  assert.deepEqual(specifiersIn(source).sort(), [
    '../four.ts',
    './eight.ts',
    './five.ts',
    './one.ts',
    './seven.ts',
    './six.ts',
    './three.ts',
    './two.ts',
    'node:fs',
  ])
})

function faultOf({ from, to }: Import): string[] {
  const layer = layerOf(from)
  const target = layerOf(to)
  const fault = (why: string) => [`${from} imports ${to}: ${why}`]
  if (!layer) return fault('it has no place in the layers')

  const owners = reserved[to]
  if (owners && !owners.some((owner) => from.startsWith(owner)))
    return fault(`only ${owners.join(' and ') || 'no file'} may`)
  if (!/\.tsx?$/.test(to)) return from.startsWith('job/') ? fault('job/ is pure and imports nothing from outside') : []

  if (!target) return fault('it has no place in the layers')
  if (layer.only && ![to, nameOf(to)].some((name) => layer.only?.includes(name)))
    return fault(`it may import only ${layer.only.join(', ')}`)
  if (layers.indexOf(target) > layers.indexOf(layer)) return fault('the arrow points the other way')
  if (engineOf(from) && engineOf(to) && engineOf(from) !== engineOf(to)) return fault('one store never knows another')
  return []
}

function layerOf(file: string): Layer | undefined {
  return layers.find((layer) => layer.names.includes(nameOf(file)))
}

function nameOf(file: string): string {
  return file.split('/')[0] ?? ''
}

function engineOf(file: string): string | undefined {
  return /^store\/(\w+)\//.exec(file)?.[1]
}

// Paths are relative to src/, except those of apps/: 'job/codec.ts', 'apps/crawler/main.ts'.
function sourceFiles(): string[] {
  const inSrc = globSync('**/*.{ts,tsx}', { cwd: join(root, 'src') })
  const inApps = globSync('apps/**/*.{ts,tsx}', { cwd: root, exclude: ['**/node_modules/**'] })
  return [...inSrc, ...inApps].map((path) => path.replaceAll('\\', '/')).sort()
}

function importsOf(file: string): Import[] {
  const path = join(root, file.startsWith('apps/') ? '' : 'src', file)
  return specifiersIn(readFileSync(path, 'utf8')).map((specifier) => ({ from: file, to: targetOf(file, specifier) }))
}

function targetOf(file: string, specifier: string): string {
  if (!specifier.startsWith('.')) return specifier.replace(/^holdfast$/, 'index.ts')
  const base = file.startsWith('apps/') ? posix.join('..', file) : file
  return posix
    .join(posix.dirname(base), specifier)
    .replace(/^\.\.\/src\//, '')
    .replace(/^\.\.\/apps\//, 'apps/')
}

// The formatter keeps static imports at the start of a line, which distinguishes them from text in comments.
function specifiersIn(source: string): string[] {
  const forms = [
    /^(?:import|export)\b[^'"`;=]*?\bfrom\s+['"]([^'"]+)['"]/gm,
    /^import\s+['"]([^'"]+)['"]/gm,
    /\bimport\(\s*['"]([^'"]+)['"]/g,
    /\bnew URL\(\s*['"](\.[^'"]+)['"],\s*import\.meta\.url/g,
  ]
  return forms.flatMap((form) => [...source.matchAll(form)].map((match) => match[1] ?? ''))
}
