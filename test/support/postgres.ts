// A database for one test, on the server that all tests share:
//
//   await using database = await testDatabase()
//   const holdfast = await open(database.url)
//
// The runner starts that server and names it in HOLDFAST_TEST_POSTGRES. Set by hand, the variable names any other server. A test
// file without the runner starts its own server, which ends with its process.
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { startServer } from './postgres-server.ts'

export { type Server, type ServerOptions, startServer } from './postgres-server.ts'

export interface Database extends AsyncDisposable {
  readonly url: string
  readonly name: string
}

// From template0, to which no session can be connected. The server's default strategy wins: 27 ms against 73 for `file_copy`, 32
// against 85 with two at once, even with eight. PostgreSQL 14 has no strategies.
export async function testDatabase(): Promise<Database> {
  const name = `holdfast_test_${randomBytes(8).toString('hex')}`
  const server = await sharedServer()
  await administer(server, `create database ${name} template template0`)
  const url = new URL(server)
  url.pathname = `/${name}`
  return {
    url: url.href,
    name,
    [Symbol.asyncDispose]: () => administer(server, `drop database if exists ${name} with (force)`),
  }
}

let own: Promise<string> | undefined

// Its URL. Kept in the environment, so that programs that a test starts find it too.
export function sharedServer(): Promise<string> {
  own ??= (async () => {
    process.env['HOLDFAST_TEST_POSTGRES'] ||= (await startServer({ inMemory: true })).url()
    return process.env['HOLDFAST_TEST_POSTGRES']
  })()
  return own
}

async function administer(server: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: server })
  await client.connect()
  try {
    await client.query(statement)
  } finally {
    await client.end()
  }
}
