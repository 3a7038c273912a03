// A database in another encoding than UTF8 cannot store every payload. It is refused before anything is made in it.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import test from 'node:test'
import pg from 'pg'
import { HoldfastError } from '../../src/errors.ts'
import { open } from '../../src/open.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { sharedServer } from '../support/postgres.ts'
import { withClient } from './filled-database.ts'

for (const encoding of ['LATIN1', 'SQL_ASCII']) {
  test(`a database with the encoding ${encoding} is refused, with the encoding and what to do`, async () => {
    await using database = await setup(encoding)
    const isRefused = (error: unknown) => {
      assert.ok(error instanceof HoldfastError)
      assert.equal(error.code, 'STORE_UNAVAILABLE')
      assert.match(error.message, new RegExp(`^The database ${database.name} has the encoding ${encoding}, `))
      assert.match(error.message, /create database .* encoding 'UTF8' template template0/)
      assert.deepEqual([error.facts['encoding'], error.facts['database']], [encoding, database.name])
      return true
    }
    await assert.rejects(open(database.url, { logger: false }), isRefused)
    await assert.rejects(open(database.url, { logger: false, readOnly: true }), isRefused)
    await withClient(database.url, async (client) => {
      await assert.rejects(migrate(client, new Schema('holdfast')), isRefused)
      const { rows } = await client.query(`select from pg_namespace where nspname = 'holdfast'`)
      assert.deepEqual(rows, [], 'nothing was made')
    })
  })
}

async function setup(encoding: string) {
  const server = await sharedServer()
  const name = `holdfast_test_${randomBytes(8).toString('hex')}`
  const administer = async (statement: string) => {
    const client = new pg.Client({ connectionString: server })
    await client.connect()
    await client.query(statement).finally(() => client.end())
  }
  await administer(`create database ${name} encoding '${encoding}' locale 'C' template template0`)
  const url = new URL(server)
  url.pathname = `/${name}`
  const drop = () => administer(`drop database if exists ${name} with (force)`)
  return { name, url: url.href, [Symbol.asyncDispose]: drop }
}
