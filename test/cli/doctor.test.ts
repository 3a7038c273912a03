// The doctor as a person or a monitor calls it: real processes, on a file and on a server.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, test } from 'node:test'
import pg from 'pg'
import { open } from '../../src/index.ts'
import { steps, stepsHash } from '../../src/store/postgres/schema/migrations.ts'
import { root } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { cleanEnvironment, run } from '../support/shell.ts'

const bin = join(root, 'bin/holdfast.js')

describe('on a file', () => {
  test('a store without findings: a list, exit code 0, and no colours', async () => {
    await using file = await setup()
    const { code, stdout } = await doctor(file.url)
    assert.equal(code, 0)
    assert.match(stdout, /^✓ The journal mode is wal\.\n(✓ .*\n)+\nAll is well: \d+ findings, all fine\.\n$/)
  })

  test('what is wrong is printed first, with its fix, and exit code 1; --fix repairs it', async () => {
    await using file = await setup()
    file.damage('update holdfast_queue set ready = 7')
    const found = await doctor(file.url)
    assert.equal(found.code, 1)
    assert.match(
      found.stdout,
      /^✗ The counts of mail differ from a recount\. \[counts\]\n {2}→ holdfast doctor --fix .*\n\n✓ /,
    )
    assert.match(found.stdout, /\n1 wrong, \d+ fine\.\n$/)
    const json = await doctor(file.url, '--json')
    const { wrong, warning, findings } = JSON.parse(json.stdout)
    assert.deepEqual(
      [json.code, wrong, warning, findings[0].id, findings[0].facts],
      [1, 1, 0, 'counts', { queues: ['mail'] }],
    )
    const repaired = await doctor(file.url, '--fix')
    assert.equal(repaired.code, 0)
    assert.match(repaired.stdout, /^✓ Repaired: The counts of mail are right again\.\n\n✓ /)
    assert.equal((await doctor(file.url)).code, 0)
  })

  test('a worker that was killed, whose leases have expired', async () => {
    await using file = await setup()
    const program = join(import.meta.dirname, 'programs/claims-and-stays.ts')
    const child = spawn(process.execPath, [program, file.url], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(child.stdout, 'data')
    child.kill('SIGKILL')
    await once(child, 'exit')
    const { code, stdout } = await doctor(file.url, '--patience', '1ms')
    assert.equal(code, 1)
    assert.match(
      stdout,
      /^✗ 1 job is held by leases that ran out, .* no process sweeps\. \[leases-expired\]\n {2}→ .*holdfast sweep/,
    )
    await run(process.execPath, [bin, 'sweep', '--store', file.url], { env: cleanEnvironment() })
    assert.doesNotMatch((await doctor(file.url, '--patience', '1ms')).stdout, /leases that ran out,/)
  })

  test('a store that does not exist, and wrong arguments', async () => {
    const missing = await doctor('sqlite:/nowhere/jobs.db')
    assert.equal(missing.code, 1)
    assert.match(missing.stdout, /^✗ There is no database at .* \[cannot-open\]\n/)
    await using file = await setup()
    assert.match((await doctor(file.url, '--patience', 'long')).stderr, /patience must be a duration/)
    assert.equal((await doctor(file.url, '--cure')).code, 2)
  })
})

describe('on a server', () => {
  test('a schema that is ahead or behind is a finding, and the doctor does not migrate it', async () => {
    await using database = await testDatabase()
    await (await open(database.url)).close()
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    try {
      await client.query('update holdfast.meta set schema = schema + 1, min_client = schema + 1')
      const ahead = await doctor(database.url)
      assert.match(ahead.stdout, /^✗ The database has schema \d+, .*Upgrade the holdfast package\. \[cannot-open\]\n/)
      const before = stepsHash(steps.slice(0, -1))
      await client.query('update holdfast.meta set schema = schema - 2, min_client = 1, steps_hash = $1', [before])
      const behind = await doctor(database.url)
      assert.match(behind.stdout, /^✗ Schema holdfast is at version \d+, and \d+ is needed\. Run "holdfast migrate"/)
      assert.deepEqual([ahead.code, behind.code], [1, 1])
    } finally {
      await client.end()
    }
  })

  test('an unreachable server is one finding, and no password is shown', async () => {
    const { code, stdout } = await doctor('postgres://app:s3cr3t@127.0.0.1:1/app')
    assert.equal(code, 1)
    assert.match(stdout, /^✗ Cannot use the database at .*ECONNREFUSED/)
    assert.doesNotMatch(stdout, /s3cr3t/)
  })
})

function doctor(store: string, ...args: string[]) {
  return run(process.execPath, [bin, 'doctor', '--store', store, ...args], { env: cleanEnvironment() })
}

/** A file with one job. */
async function setup() {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'jobs.db')
  const holdfast = await open(`sqlite:${path}`)
  await holdfast.queue('mail').enqueue(1)
  await holdfast.close()
  return {
    url: `sqlite:${path}`,
    damage(text: string) {
      const db = new DatabaseSync(path)
      db.exec(text)
      db.close()
    },
    [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose](),
  }
}
