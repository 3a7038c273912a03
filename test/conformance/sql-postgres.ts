// PostgreSQL as an application uses it.
import type { Pool, PoolClient } from 'pg'
import type { ApplicationSql, CallerTx, Dialect, SqlFailingAtCommit } from './world.ts'

/** A deferred trigger that raises this error for the number 7. */
function raising(errcode: string): SqlFailingAtCommit {
  return {
    make: [
      'create table $schema.noted (n int)',
      `create or replace function $schema.mind() returns trigger language plpgsql as $$
       begin if new.n = 7 then raise exception 'not seven' using errcode = '${errcode}'; end if; return null; end $$`,
      `create constraint trigger mind after insert on $schema.noted deferrable initially deferred
       for each row execute function $schema.mind()`,
    ],
    add: (n) => [{ text: 'insert into $schema.noted values ($1)', values: [n] }],
    table: '$schema.noted',
    says: /not seven/,
    ...(errcode !== '40001' && { isVariant: true }),
  }
}

export const postgresDialect: Dialect = {
  oneWriter: false,
  broken: 'select 1 / 0',
  failing: {
    'a syntax error': { text: 'inzert into $notes values (1)', says: /syntax error/ },
    'a table that does not exist': { text: 'insert into nowhere values (1)', says: /"nowhere" does not exist/ },
    'a broken constraint': { text: 'insert into $notes values (-1)', says: /violates check constraint/ },
    'a row that already exists': { text: 'insert into $notes values (7)', says: /duplicate key/ },
    'a division by zero': { text: 'insert into $notes select 1 / $1::int', values: [0], says: /division by zero/ },
    'too few values': { text: 'insert into $notes values ($1)', values: [], says: /parameter/ },
    'too many values': { text: 'insert into $notes values ($1)', values: [1, 2], says: /parameter/ },
    'a value of another type': {
      text: 'insert into $notes values ($1)',
      values: ['one'],
      says: /invalid input syntax/,
    },
    'two statements': { text: 'insert into $notes values (1); insert into $notes values (2)', says: /./ },
    'a statement and a commit': { text: 'insert into $notes values (1); commit', says: /./ },
    'an error of its own': { text: `do $$ begin raise exception 'not today'; end $$`, says: /not today/ },
    'an error that looks like a deadlock': {
      text: `do $$ begin raise exception 'not today' using errcode = '40P01'; end $$`,
      says: /not today/,
    },
    'an error that looks like a lost connection': {
      text: `do $$ begin raise exception 'not today' using errcode = '08006'; end $$`,
      says: /not today/,
    },
    'an error that looks like one of the store’s': {
      text: `do $$ begin raise exception 'not today' using errcode = 'HF004'; end $$`,
      says: /not today/,
    },
    commit: { text: 'commit', says: /transaction/ },
    'rollback after a comment': { text: ' /* x */ ROLLBACK', says: /transaction/ },
    'commit after a comment in a comment': { text: '/* /* x */ */ commit', says: /transaction/ },
    'commit after a line that ends with a carriage return': { text: '-- x\rcommit', says: /transaction/ },
    'commit after a semicolon': { text: ';; commit and chain', says: /transaction/ },
    'end, spelled as the standard does': { text: 'end work', says: /transaction/ },
    'a savepoint': { text: 'savepoint mine', says: /transaction/ },
    'a return to the savepoint that guards it': { text: 'rollback to savepoint attempt', says: /transaction/ },
    'a transaction prepared for later': { text: `prepare transaction 'mine'`, says: /transaction/ },
    'a commit inside a block': { text: 'do $$ begin commit; end $$', says: /transaction termination/ },
    'a vacuum': { text: 'vacuum $notes', says: /transaction block/ },
  },
  failingLikeTheStore: {
    'a statement that ends its own session': {
      text: 'select pg_terminate_backend(pg_backend_pid())',
      says: /terminating connection/,
    },
    'a disk that is full for one statement': {
      text: `do $$ begin raise exception 'no room' using errcode = '53100'; end $$`,
      says: /no room/,
    },
  },
  failingAtCommit: {
    'a deferred foreign key': {
      make: [
        'create table $schema.parent (n int primary key)',
        'insert into $schema.parent select n from generate_series(0, 15) n where n <> 7',
        'create table $schema.child (n int references $schema.parent deferrable initially deferred)',
      ],
      add: (n) => [{ text: 'insert into $schema.child values ($1)', values: [n] }],
      table: '$schema.child',
      says: /violates foreign key constraint/,
    },
    'a deferred unique key': {
      make: [
        'create table $schema.seat (n int unique deferrable initially deferred)',
        'insert into $schema.seat values (7)',
      ],
      add: (n) => [{ text: 'insert into $schema.seat values ($1)', values: [n] }],
      table: '$schema.seat',
      isVariant: true,
      says: /duplicate key/,
    },
    'a deferred trigger': raising('P0001'),
    'a deferred trigger that looks like a collision': raising('40001'),
    'a deferred trigger that looks like a deadlock': raising('40P01'),
    'a deferred trigger that looks like a lost connection': raising('08006'),
    'a deferred trigger that looks like a shutdown': raising('57P01'),
    'a deferred trigger that looks like the store': raising('HF004'),
    'a deferred trigger that looks like a full disk': raising('53100'),
    'a deferred trigger that ends its own session': {
      make: [
        'create table $schema.noted (n int)',
        `create or replace function $schema.mind() returns trigger language plpgsql as $$
         begin if new.n = 7 then perform pg_terminate_backend(pg_backend_pid()); end if; return null; end $$`,
        `create constraint trigger mind after insert on $schema.noted deferrable initially deferred
         for each row execute function $schema.mind()`,
      ],
      add: (n) => [{ text: 'insert into $schema.noted values ($1)', values: [n] }],
      table: '$schema.noted',
      says: /terminating connection/,
      isVariant: true,
    },
    'what no constraint check finds': {
      make: ['create table $schema.noted (n int)'],
      add: (n) => [
        { text: 'insert into $schema.noted values ($1)', values: [n] },
        // On commit the first is to be emptied, and the second refers to its rows.
        ...(n === 7
          ? [
              { text: 'create temporary table a (n int primary key) on commit delete rows' },
              { text: 'create temporary table b (n int references a) on commit preserve rows' },
            ]
          : []),
      ],
      table: '$schema.noted',
      says: /unsupported ON COMMIT and foreign key combination/,
    },
  },
  values: [
    { what: 'a number', type: 'int', given: 7 },
    { what: 'a fraction', type: 'double precision', given: 1.5 },
    { what: 'a bigint', type: 'bigint', given: 2n ** 60n, read: String(2n ** 60n) },
    { what: 'a boolean', type: 'boolean', given: true },
    { what: 'a text', type: 'text', given: `it's "quoted" \u{1f600}` },
    { what: 'nothing', type: 'text', given: null },
    { what: 'a time', type: 'timestamptz', given: new Date('2030-01-31T09:00:00.123Z') },
    { what: 'an object', type: 'jsonb', given: { a: [1, null, 'x'] } },
    { what: 'a list', type: 'int[]', given: [1, 2] },
    { what: 'a list of texts', type: 'text[]', given: ['a', 'b,c'] },
    { what: 'bytes', type: 'bytea', given: Buffer.from([0, 255]) },
  ],
  refusesSeven: (schema) => ({
    make: `alter table ${schema}.ended add constraint no_seven check (result is distinct from '7')`,
    drop: `alter table ${schema}.ended drop constraint no_seven`,
  }),
  refusesForbidden: (schema, what) => {
    const [table, column] = what === 'entry' ? ['kv', 'value'] : ['job', 'payload']
    return {
      make: `create function ${schema}.not_allowed() returns trigger language plpgsql as
             $$ begin if new.${column} like '%forbidden%' then raise exception 'not_allowed'; end if; return new; end $$;
             create trigger not_allowed before insert or update on ${schema}.${table}
               for each row execute function ${schema}.not_allowed()`,
      drop: `drop function ${schema}.not_allowed cascade`,
    }
  },
  from: {
    key: (schema, key) => `${schema}.kv where key = '${key}'`,
    ready: (schema) => `${schema}.job`,
    ended: (schema, id) => `${schema}.ended where id = '${id}'`,
    changes: (schema) => `${schema}.change`,
  },
  damagedLabels: [
    `delete from $schema.label where hash = hashtextextended('customer=c1', 0)`,
    `insert into $schema.label values (1, 1, '0190a5b0-0000-7000-8000-000000000001')`,
  ],
  storeTables: (schema) => `
    select c.relname as name from pg_class c where c.relkind = 'r' and c.relnamespace = '${schema}'::regnamespace`,
  tableOf: (schema, name) => `${schema}."${name}"`,
  keepKeys: ['limit_start', 'flush'], // starts that count for a rate; answers of calls, in case they are lost
  wrongLabelRows: (schema) => `
    select coalesce(l.seq, j.seq)::text as seq, l.seq is null as is_missing
      from ${schema}.label l
      full join (select o.seq, o.id, hashtextextended(e.name || '=' || e.value, 0) as hash
                   from (select seq, id, labels from ${schema}.job union all select seq, id, labels from ${schema}.ended) o
                  cross join lateral jsonb_each_text(o.labels) e(name, value)) j
        on j.seq = l.seq and j.hash = l.hash and j.id = l.id
     where l.seq is null or j.seq is null`,
  orphanedJournals: (schema) => `
    select seq::text from (select seq from ${schema}.journal union select seq from ${schema}.record
                           union select seq from ${schema}.await_key
                           union select seq from ${schema}.message where seq is not null) r
     where seq not in (select seq from ${schema}.job union all select seq from ${schema}.ended)`,
  orphanedRecord: `insert into $schema.record (seq, no, step, part, body) values (1000000, 1, 'a', 0, '{}')`,
}

export function postgresApplication(pool: Pool, schema: string): ApplicationSql {
  const transactions: PostgresTx[] = []
  return {
    schema: `"${schema}"`,
    query: async (text, values = []) => (await pool.query(text, [...values])).rows,
    begin: async (how = '') => {
      const tx = new PostgresTx(await pool.connect())
      transactions.push(tx)
      await tx.query(`begin ${how}`)
      return tx
    },
    end: async () => {
      for (const tx of transactions) await tx.rollback()
    },
  }
}

class PostgresTx implements CallerTx {
  readonly #client: PoolClient
  #isOpen = true

  constructor(client: PoolClient) {
    this.#client = client
  }

  get tx(): object {
    return this.#client
  }

  query(text: string, values: readonly unknown[] = []) {
    return this.#client.query(text, [...values])
  }

  commit(): Promise<void> {
    return this.#end('commit')
  }

  rollback(): Promise<void> {
    return this.#end('rollback')
  }

  async #end(how: string): Promise<void> {
    if (!this.#isOpen) return
    this.#isOpen = false
    await this.#client.query(how)
    this.#client.release()
  }
}
