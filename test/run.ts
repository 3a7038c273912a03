// `npm test` runs every test file, `npm test -- test/house test/package/pack.test.ts` only those. `npm run test:quick` runs the
// ones that need no server and no other process, `npm run test:system` those that need a Debian package; flags go to `node
// --test`. A path that matches nothing is an error, not a green run. Files about PostgreSQL get one server for all of them,
// unless
// HOLDFAST_TEST_POSTGRES names one.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { globSync, readFileSync, statSync } from 'node:fs'
import { availableParallelism, constants } from 'node:os'
import { resolve } from 'node:path'
import { startServer } from './support/postgres-server.ts'

const quiet = './test/support/quiet-reporter.ts'
/** Many wait more than they work: for leases, disks, processes that start. */
const filesACore = 2
/** Every process and thread of a test would else read and compile the whole source anew: 0.6 s instead of 0.2. */
const compiled = 'node_modules/.cache/holdfast-tests'
const args = process.argv.slice(2)
const system = args.includes('--system')
const quick = args.includes('--quick')
const flags = args.filter((arg) => arg.startsWith('--') && arg !== '--system' && arg !== '--quick')
const wanted = args.filter((arg) => !arg.startsWith('--'))

/** For the inner loop: under a minute together with types and lint, on two cores. */
const quickFiles = [
  ...['conformance/sqlite-memory', 'conformance/without-sql', 'house/house', 'house/imports', 'house/steps'],
  ...['client/backoff', 'client/json', 'client/open', 'client/results', 'client/waiters', 'server/handler'],
  ...['observe/explain', 'observe/health', 'observe/log', 'observe/metrics', 'schedule/cron', 'batch/json-lines'],
  ...['testing/expect-enqueued', 'testing/handler-job', 'testing/virtual-clock', 'webhook/addresses'],
  ...['webhook/signature', 'worker/alarm', 'worker/breaker', 'worker/progress-board', 'worker/resource'],
  ...['worker/thread-wire', 'worker/turns'],
].map((name) => `test/${name}.test.ts`)

const everything = system ? ['test/system'] : quick ? [...quickFiles, 'test/types'] : ['test']
const files = (wanted.length > 0 ? wanted : everything).flatMap(testFilesIn)

process.exitCode = await runTests()

async function runTests(): Promise<number> {
  const given = process.env['HOLDFAST_TEST_POSTGRES']
  await using server = given || !files.some(needsPostgres) ? undefined : await startServer({ inMemory: true })
  const postgres = given || server?.url()
  const child = spawn(
    process.execPath,
    [
      '--test',
      `--test-concurrency=${availableParallelism() * filesACore}`,
      '--test-timeout=300000',
      ...(flags.some((flag) => flag.startsWith('--test-reporter')) ? [] : [`--test-reporter=${quiet}`]),
      ...flags,
      ...files,
    ],
    {
      stdio: 'inherit',
      env: {
        NODE_COMPILE_CACHE: resolve(compiled),
        ...process.env,
        ...(system && { HOLDFAST_TEST_SYSTEM: '1' }),
        ...(postgres && { HOLDFAST_TEST_POSTGRES: postgres }),
      },
    },
  )
  // Asked to end, the run lets its tests end first, and then its server.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => child.kill(signal))
  const [code, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null]
  return code ?? 128 + (signal ? constants.signals[signal] : 0)
}

function needsPostgres(file: string): boolean {
  return file.includes('postgres') || readFileSync(file, 'utf8').includes('support/postgres')
}

function testFilesIn(path: string): string[] {
  const found = statSync(path, { throwIfNoEntry: false })?.isDirectory()
    ? globSync(`${path}/**/*.test.ts`, { exclude: ['test/.tmp/**'] })
    : globSync(path)
  if (found.length === 0) throw new Error(`No test files in ${path}`)
  return found.sort()
}
