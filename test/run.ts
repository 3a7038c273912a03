// `npm test` runs every test file, `npm test -- test/house test/package/pack.test.ts` only those, and `npm run
// test:system` the ones that need a Debian package; flags go to `node --test`. A path that matches nothing is an error,
// not a green run.
import { spawnSync } from 'node:child_process'
import { globSync, statSync } from 'node:fs'
import { availableParallelism } from 'node:os'

const quiet = './test/support/quiet-reporter.ts'
const args = process.argv.slice(2)
const system = args.includes('--system')
const flags = args.filter((arg) => arg.startsWith('--') && arg !== '--system')
const wanted = args.filter((arg) => !arg.startsWith('--'))

const files = (wanted.length > 0 ? wanted : [system ? 'test/system' : 'test']).flatMap(testFilesIn)

const { status } = spawnSync(
  process.execPath,
  [
    '--test',
    `--test-concurrency=${availableParallelism()}`,
    '--test-timeout=300000',
    ...(flags.some((flag) => flag.startsWith('--test-reporter')) ? [] : [`--test-reporter=${quiet}`]),
    ...flags,
    ...files,
  ],
  { stdio: 'inherit', env: { ...process.env, ...(system && { HOLDFAST_TEST_SYSTEM: '1' }) } },
)
process.exitCode = status ?? 1

function testFilesIn(path: string): string[] {
  const found = statSync(path, { throwIfNoEntry: false })?.isDirectory()
    ? globSync(`${path}/**/*.test.ts`, { exclude: ['test/.tmp/**'] })
    : globSync(path)
  if (found.length === 0) throw new Error(`No test files in ${path}`)
  return found.sort()
}
