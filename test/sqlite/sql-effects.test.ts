// SQL effects that do more than fail: they roll back the whole transaction, or prevent its commit. What every store promises
// of SQL effects is in test/conformance/.
import assert from 'node:assert/strict'
import type { DatabaseSync } from 'node:sqlite'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { firstWord, isBlank, parametersOf } from '../../src/store/sqlite/statement.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { readJob, rejects } from '../conformance/expect.ts'
import { jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'

/** Each accepts every number except 7. */
const tables = `
  create table note (n int unique);
  insert into note values (7);
  create table guarded (n int);
  create trigger guard before insert on guarded when new.n = 7 begin select raise(rollback, 'not seven'); end;
  create table parent (n int primary key);
  insert into parent values (1), (2), (3), (4), (5), (6), (8), (9), (10);
  create table child (n int references parent deferrable initially deferred)`

const ways: Readonly<Record<string, { table: string; text: string; says: RegExp }>> = {
  'a conflict that rolls everything back': {
    table: 'note',
    text: 'insert or rollback into note values ($1)',
    says: /UNIQUE constraint failed/,
  },
  'a trigger that rolls everything back': {
    table: 'guarded',
    text: 'insert into guarded values ($1)',
    says: /not seven/,
  },
  'a foreign key that is missing at the commit': {
    table: 'child',
    text: 'insert into child values ($1)',
    says: /FOREIGN KEY constraint failed/,
  },
}

const numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
const others = numbers.filter((n) => n !== 7)

for (const [what, { table, text, says }] of Object.entries(ways)) {
  const effects = (n: number): Effects => ({ put: [{ key: `k${n}`, value: n }], sql: [{ text, values: [n] }] })
  const stored = (db: DatabaseSync) =>
    db
      .prepare(`select n from ${table} where n <> 7 order by n`)
      .all()
      .map((row) => row['n'])

  describe(what, () => {
    test('fails its own job, and other settlements of the same flush are stored', async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      const db = file.raw()
      db.exec(tables)
      const leases = await claimed(holdfast)
      const calls = [
        holdfast.kv.put('beside', 1),
        ...leases.map((lease) => lease.done('ok', effects(payloadOf(lease)))),
      ]
      const outcomes = await Promise.allSettled(calls)
      const failed = outcomes.flatMap((outcome, i) => (outcome.status === 'rejected' ? [[i, outcome.reason.code]] : []))
      assert.deepEqual(failed, [[7, 'INVALID_OPTION']])
      assert.deepEqual(stored(db), others)
      const { state, history } = await readJob(holdfast, (leases[6] as Lease).job.id)
      assert.deepEqual([state, history[0]?.ending, history[0]?.error?.name], ['scheduled', 'failed', 'EffectFailed'])
      assert.match(history[0]?.error?.message ?? '', says)
      assert.equal(await holdfast.kv.get('k7'), null)
      assert.equal((await Array.fromAsync(holdfast.kv.scan('k'))).length, others.length)
      assertCountsEqualRecount(db)
    })

    test('refuses its own cancel, and the job stays as it was', async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      const db = file.raw()
      db.exec(tables)
      const { id } = await holdfast.queue('mail').enqueue(7)
      assert.match((await rejects(holdfast.cancel(id, { effects: effects(7) }), 'INVALID_OPTION')).message, says)
      assert.equal((await readJob(holdfast, id)).state, 'ready')
      assert.equal(await holdfast.cancel(id, { effects: effects(8) }), 'cancelled')
      assert.deepEqual(stored(db), [8])
      assertCountsEqualRecount(db)
    })

    test('of a requested cancel does not stop the cancel, and the sweep stores the effects of all others', async () => {
      await using file = await jobsFile()
      const clock = new VirtualClock()
      const holdfast = await file.open({ clock })
      const db = file.raw()
      db.exec(tables)
      const leases = await claimed(holdfast)
      for (const lease of leases) await holdfast.cancel(lease.job.id, { effects: effects(payloadOf(lease)) })
      clock.advance(60_000)
      assert.equal((await holdfast.sweep()).rescued, numbers.length)
      for (const lease of leases) {
        const { state, error } = await readJob(holdfast, lease.job.id)
        assert.equal(state, 'cancelled')
        if (payloadOf(lease) === 7) assert.match(error?.message ?? '', says)
        else assert.equal(error?.name, 'LeaseExpired')
      }
      assert.deepEqual(stored(db), others)
      assert.equal((await Array.fromAsync(holdfast.kv.scan('k'))).length, others.length)
      assertCountsEqualRecount(db)
    })
  })
}

test('statements may create and change tables, also while other jobs wait for their settlement', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const leases = await claimed(holdfast)
  const add = (n: number) => ({ text: 'insert into made values (?)', values: [n] })
  await Promise.all(
    leases.map((lease, i) => {
      const sql = i === 0 ? [{ text: 'create table made (n int)' }, add(1)] : [add(i + 1)]
      return lease.done(null, { sql })
    }),
  )
  const rows = file.raw().prepare('select n from made order by n').all()
  assert.deepEqual(
    rows.map((row) => row['n']),
    numbers,
  )
})

test('a statement that creates a temporary object is refused, and the store still uses its own tables', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const texts = [
    'create temp table holdfast_kv as select * from main.holdfast_kv',
    'CREATE TEMPORARY TABLE scratch (n int)',
    '/* a note */ create /* another */ table if not exists "temp" . scratch (n int)',
    'create table [temp].scratch as select 1 as n',
    'create temp view holdfast_queue as select 1 as no',
    'create temp trigger no_jobs before insert on holdfast_job begin select raise(abort, 1); end',
  ]
  const text = 'create table temp (n int)' // its own name is not the schema's
  await holdfast.queue('mail').enqueueMany([...texts, text].map((payload) => ({ payload })))
  const leases = await holdfast.claim(['mail'], { max: texts.length + 1 })
  const settled = leases.map((lease) => lease.done(null, { sql: [{ text: lease.job.payload as string }] }))
  const outcomes = await Promise.allSettled(settled)
  assert.deepEqual(
    outcomes.map((outcome) => (outcome.status === 'rejected' ? outcome.reason.message : 'done')),
    [...texts.map((each) => `SQL effect "${each}": it would change the transaction or session it is run in.`), 'done'],
  )
  await holdfast.kv.put('k', 1)
  await holdfast.queue('mail').enqueue('next')
  assert.equal(file.raw().prepare('select count(*) as rows from holdfast_kv').get()?.['rows'], 1)
  assertCountsEqualRecount(file.raw())
})

test('a trigger with several statements is one statement', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const [lease] = await claimed(holdfast)
  const trigger =
    'create trigger twice after insert on a begin insert into b values (1); insert into b values (2); end; -- so'
  const texts = ['create table a (n int)', 'create table b (n int)', trigger, 'insert into a values (0);']
  await lease?.done(null, { sql: texts.map((text) => ({ text })) })
  assert.equal(file.raw().prepare('select count(*) as rows from b').get()?.['rows'], 2)
})

describe('a statement is parsed as SQLite parses it', () => {
  const parameters: readonly [string, number, string[], string[]][] = [
    ['select ?, ?', 2, [], []],
    ['select $1, $2, $1', 0, ['$1', '$2'], []],
    ['select ?2, ?1', 0, ['?2', '?1'], []],
    [`select '?', "$1", [?], \`:x\`, 'it''s ?' -- ?\n /* $1 */, ?`, 1, [], []],
    ['select a$1, b->>?, 1?', 2, [], []],
    ['select :a, @b, $c, $1::int', 0, [], [':a', '@b', '$c', '$1::int']],
    ['select 1 /* ? ', 0, [], []],
  ]
  for (const [text, bare, numbered, named] of parameters) {
    test(`the parameters of ${text}`, () => {
      const found = parametersOf(text)
      assert.deepEqual([found.bare, [...found.numbered.keys()], found.named], [bare, numbered, named])
    })
  }

  test('its first word follows white space, semicolons and comments that do not nest', () => {
    for (const text of [
      'commit',
      ' \t;\n; COMMIT',
      '-- x\r y\ncommit',
      '/* /* */commit',
      '\ufeffCommit;',
      '/**/--\ncommit',
    ])
      assert.equal(firstWord(text), 'commit', JSON.stringify(text))
    for (const text of ['', '-- commit', '-- x\rcommit', '/* commit', '/* */ 1 commit', '"commit"'])
      assert.equal(firstWord(text), '', JSON.stringify(text))
  })

  test('a text of any length is parsed quickly', () => {
    const long = ' ;'.repeat(500_000)
    assert.equal(firstWord(`${long}/*${long}*/commit`), 'commit')
    assert.equal(isBlank(long), true)
    assert.equal(isBlank(`${long}x`), false)
    assert.equal(parametersOf(`select '${"''".repeat(500_000)}', ?`).bare, 1)
  })
})

async function claimed(holdfast: Holdfast): Promise<Lease[]> {
  await holdfast.queue('mail').enqueueMany(numbers.map((payload) => ({ payload })))
  return holdfast.claim(['mail'], { max: numbers.length })
}

function payloadOf(lease: Lease): number {
  return lease.job.payload as number
}
