// The functions of a release are created with a schema, and replaced as a set by every migration.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { open } from '../../src/open.ts'
import { functionsIn } from '../../src/store/postgres/schema/install-functions.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import { type Release, release, steps } from '../../src/store/postgres/schema/migrations.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { withClient } from './filled-database.ts'
import { setup } from './role-database.ts'

const holdfastSchema = new Schema('holdfast')

const plain = (name: string, result: string) =>
  `create function holdfast.${name}() returns ${result} language sql as $holdfast$ select 1 $holdfast$;\n`

function withFunctions(...texts: string[]): Release {
  return { ...release, functions: [...release.functions, ...texts] }
}

const bring = (url: string, to: Release, schema = holdfastSchema) =>
  withClient(url, (client) => migrate(client, schema, to))

const namesIn = `select p.proname as name, format_type(p.prorettype, null) as result from pg_proc p
  where p.pronamespace = $1::regnamespace and p.proname like any (array['novel%', 'app%']) order by 1`

describe('the functions of a schema', () => {
  test('have bodies that the server accepts', async () => {
    await using database = await setup()
    await (await open(database.url)).close()
    const all = release.functions.flatMap(functionsIn)
    assert.equal(all.length, release.functions.join('').match(/^create function/gm)?.length)
    for (const text of all)
      await database.rows(holdfastSchema.sql(text).replace('create function', 'create or replace function'))
  })

  test('are replaced if the release has others, also with another result type, and dropped if it has them no more', async () => {
    await using database = await setup()
    await bring(database.url, withFunctions(plain('novel', 'int'), plain('novelty', 'int')))
    await bring(database.url, withFunctions(plain('novel', 'bigint')))
    assert.deepEqual(await database.rows(namesIn, ['holdfast']), [{ name: 'novel', result: 'bigint' }])
    await using holdfast = await open(database.url)
    assert.deepEqual(await database.rows(namesIn, ['holdfast']), [], 'opening installs those of this release')
    await holdfast.queue('mail').enqueue(1)
    await (await claimOne(holdfast, 'mail')).done()
  })

  test('keep a grant by hand and a view of the application across a replacement', async () => {
    await using database = await setup()
    const role = await database.role('app')
    await (await open(database.url)).close()
    await database.rows(`grant usage on schema holdfast to "${role}"`)
    await database.rows(`grant execute on function holdfast.now_ms(bigint) to "${role}"`)
    await database.rows('create view clock as select holdfast.now_ms(7) as ms')
    await bring(database.url, withFunctions(plain('novel', 'int')))
    const [held] = await database.rows('select has_function_privilege($1, $2, $3) as may', [
      role,
      'holdfast.now_ms(bigint)',
      'execute',
    ])
    assert.deepEqual(held, { may: true })
    assert.deepEqual(await database.rows('select ms::int from clock'), [{ ms: 7 }])
  })

  test('never touch functions of the application in the same schema', async () => {
    await using database = await setup()
    await database.rows('create function public.app_own() returns int language sql as $$ select 1 $$')
    const inPublic = new Schema('public')
    await bring(database.url, withFunctions(plain('novel', 'int')), inPublic)
    await bring(database.url, release, inPublic)
    assert.deepEqual(await database.rows(namesIn, ['public']), [{ name: 'app_own', result: 'integer' }])
    const [app] = await database.rows(`select has_function_privilege('public', 'public.app_own()', 'execute') as may`)
    assert.deepEqual(app, { may: true })
    const [ours] = await database.rows(
      `select has_function_privilege('public', 'public.now_ms(bigint)', 'execute') as may`,
    )
    assert.deepEqual(ours, { may: false })
  })

  test('of another build are refused to a role that may not replace them', async () => {
    await using database = await setup()
    const worker = await database.role('worker')
    await bring(database.url, withFunctions(plain('novel', 'int')))
    await database.rows(`grant usage on schema holdfast to "${worker}"`)
    await database.rows(`grant select on holdfast.meta to "${worker}"`)
    for (const readOnly of [true, false]) {
      const { message } = await rejects(open(database.urlOf(worker), { readOnly }), 'STORE_UNAVAILABLE')
      assert.match(message, /its functions are not those of this release\. Run "holdfast migrate" as its owner/)
    }
  })
})

test('a schema that was made by other steps with the same number is refused with an explanation', async () => {
  await using database = await setup()
  const [first, ...rest] = steps
  const edited = { ...release, steps: [{ ...first, sql: `${first?.sql} -- edited` }, ...rest] }
  await bring(database.url, edited)
  const error = await rejects(open(database.url), 'STORE_UNAVAILABLE', { found: steps.length })
  assert.match(error.message, /other steps have made it than those of this release/)
})
