// The promises on older servers: the conformance suite, as it runs on the newest.
import { describe, test } from 'node:test'
import { root } from '../support/checkout.ts'
import { startServer } from '../support/postgres.ts'
import { nativeOf, needsPostgres } from '../support/postgres-versions.ts'
import { cleanEnvironment, runOk } from '../support/shell.ts'
import { onlyLong } from '../support/system.ts'

const files = ['test/conformance/postgres.test.ts', 'test/postgres/restore.test.ts']

describe('the promises hold on PostgreSQL', () => {
  for (const version of [14, 15] as const)
    test(String(version), {
      skip: onlyLong('runs the whole suite again') || needsPostgres(version),
      timeout: 1_800_000,
    }, async () => {
      await using server = await startServer({ native: nativeOf(version) })
      await runOk(process.execPath, ['--test', '--test-reporter=dot', ...files], {
        cwd: root,
        env: { ...cleanEnvironment(), HOLDFAST_TEST_POSTGRES: server.url() },
        timeoutMs: 1_790_000,
      })
    })
})
