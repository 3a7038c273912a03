// SQLite as an application uses it: its own connections to the same file.
import { DatabaseSync, type SQLInputValue } from 'node:sqlite'
import BetterSqlite3 from 'better-sqlite3'
import type { SqliteDriver } from '../../src/store/sqlite/connection/driver.ts'
import type { ApplicationSql, CallerTx, Dialect } from './world.ts'

const circle: unknown[] = []
circle.push(circle)

const add = 'insert into $notes (n) values ($1)'

export const sqliteDialect: Dialect = {
  oneWriter: true,
  broken: 'select abs(-9223372036854775808)',
  failing: {
    'a syntax error': { text: 'inzert into $notes values (1)', says: /syntax error/ },
    'a table that does not exist': { text: 'insert into nowhere values (1)', says: /no such table: nowhere/ },
    'a broken constraint': { text: 'insert into $notes (n) values (-1)', says: /CHECK constraint failed/ },
    'a row that already exists': { text: 'insert into $notes (n) values (7)', says: /UNIQUE constraint failed/ },
    'a conflict that rolls everything back': {
      text: 'insert or rollback into $notes (n) values (7)',
      says: /UNIQUE constraint failed/,
    },
    'a number that overflows': {
      text: 'insert into $notes (n) select abs($1)',
      values: [-(2n ** 63n)],
      says: /overflow/,
    },
    'too few values': { text: add, values: [], says: /ask for 1 value, and it came with 0/ },
    'too few values for bare parameters': { text: 'insert into $notes values (?, ?)', values: [1], says: /ask for 2/ },
    'too many values': { text: add, values: [1, 2], says: /ask for 1 value, and it came with 2/ },
    'parameters of two kinds': { text: 'insert into $notes values ($1, ?)', values: [1, 2], says: /\$1, \$2, … or \?/ },
    'a parameter with a name': { text: 'insert into $notes (n) values (:n)', values: [1], says: /have no names/ },
    'a parameter with a cast': { text: 'insert into $notes (n) values ($1::int)', values: [1], says: /have no names/ },
    'a bigint beyond 64 bits': { text: add, values: [2n ** 70n], says: /too large/ },
    'a function for a value': { text: add, values: [() => 1], says: /a function/ },
    'a symbol for a value': { text: add, values: [Symbol('one')], says: /a symbol/ },
    'a class instance for a value': { text: add, values: [new Map()], says: /a Map/ },
    'a value that contains itself': { text: add, values: [circle], says: /refers back/ },
    'a value that is not a number': { text: add, values: [Number.NaN], says: /NaN/ },
    'a time that is none': { text: add, values: [new Date('never')], says: /Invalid time/ },
    'two statements': {
      text: 'insert into $notes (n) values (1); insert into $notes (n) values (2)',
      says: /more than one statement/,
    },
    'a statement and a commit': { text: 'insert into $notes (n) values (1); commit', says: /more than one statement/ },
    'a statement, a comment and a commit': { text: 'select 1; /* x */ -- y\n commit', says: /more than one statement/ },
    'a statement that a NUL cuts short': { text: 'select 1\0; commit', says: /more than one statement/ },
    'nothing but a comment': { text: '-- x\rcommit', says: /no statements/ },
    commit: { text: 'commit', says: /transaction/ },
    'rollback after a comment': { text: ' /* x */ ROLLBACK', says: /transaction/ },
    'commit after a comment that does not nest': { text: '/* /* x */ commit', says: /transaction/ },
    'commit after a byte order mark': { text: '\ufeffcommit', says: /transaction/ },
    'commit after a semicolon': { text: ';; commit', says: /transaction/ },
    end: { text: '-- x\nend transaction', says: /transaction/ },
    begin: { text: 'begin', says: /transaction/ },
    'a savepoint': { text: 'savepoint mine', says: /transaction/ },
    'a return to the savepoint that guards it': { text: 'rollback to one', says: /transaction/ },
    'the end of the savepoint that guards it': { text: 'release one', says: /transaction/ },
    'a pragma': { text: 'pragma foreign_keys = off', says: /transaction/ },
    'another database': { text: `attach ':memory:' as other`, says: /transaction/ },
    'the end of another database': { text: 'detach other', says: /transaction/ },
    'a vacuum': { text: 'vacuum', says: /transaction/ },
  },
  failingLikeTheStore: {
    // SQLITE_CORRUPT_VTAB, although no page of the file is damaged.
    'a full-text index that disagrees with its table': {
      make: [
        'create table if not exists $schema.doc (id integer primary key, body text)',
        `create virtual table if not exists $schema.doc_index using fts5(body, content='doc', content_rowid='id')`,
        `insert or ignore into $schema.doc values (2, 'x')`,
      ],
      text: `insert into doc_index (doc_index, rank) values ('integrity-check', 1)`,
      says: /malformed|corrupt/,
    },
  },
  failingAtCommit: {
    'a deferred foreign key': {
      make: [
        'create table $schema.parent (n int primary key)',
        "insert into $schema.parent select value from json_each('[0,1,2,3,4,5,6,8,9,10,11,12,13,14,15]')",
        'create table $schema.child (n int references parent deferrable initially deferred)',
      ],
      add: (n) => [{ text: 'insert into $schema.child values ($1)', values: [n] }],
      table: '$schema.child',
      says: /FOREIGN KEY constraint failed/,
    },
  },
  values: [
    { what: 'a number', type: 'integer', given: 7 },
    { what: 'a fraction', type: 'real', given: 1.5 },
    { what: 'a bigint', type: 'integer', given: 2n ** 40n, read: 2 ** 40 },
    { what: 'a boolean', type: 'integer', given: true, read: 1 },
    { what: 'a text', type: 'text', given: `it's "quoted" \u{1f600}` },
    { what: 'nothing', type: 'text', given: null },
    { what: 'a time', type: 'text', given: new Date('2030-01-31T09:00:00.123Z'), read: '2030-01-31T09:00:00.123Z' },
    { what: 'an object', type: 'text', given: { a: [1, null, 'x'] }, read: '{"a":[1,null,"x"]}' },
    { what: 'an object that looks unfit', type: 'text', given: { unfit: 'x' }, read: '{"unfit":"x"}' },
    { what: 'a list', type: 'text', given: [1, 2], read: '[1,2]' },
    { what: 'bytes', type: 'blob', given: Buffer.from([0, 255]), read: new Uint8Array([0, 255]) },
    { what: 'a view of bytes', type: 'blob', given: new Uint16Array([1, 2]).subarray(1), read: new Uint8Array([2, 0]) },
  ],
  refusesSeven: () => ({
    make: `create trigger no_seven before insert on holdfast_ended when new.result = '7'
           begin select raise(abort, 'no_seven'); end`,
    drop: 'drop trigger no_seven',
  }),
  refusesForbidden: (_, what) => {
    const [table, column] = what === 'entry' ? ['holdfast_kv', 'value'] : ['holdfast_job', 'payload']
    const when = what === 'changed job' ? 'update' : 'insert'
    return {
      make: `create trigger not_allowed before ${when} on ${table} when new.${column} like '%forbidden%'
             begin select raise(abort, 'not_allowed'); end`,
      drop: 'drop trigger not_allowed',
    }
  },
  from: {
    key: (_, key) => `holdfast_kv where key = '${key}'`,
    ready: () => 'holdfast_ready',
    ended: (_, id) => `holdfast_ended e join holdfast_job j on j.seq = e.seq where j.id = '${id}'`,
    changes: () => 'holdfast_change',
  },
  damagedLabels: [
    `delete from holdfast_label where name = 'customer' and value = 'c1'`,
    `insert into holdfast_label values ('customer', 'c1', 1000000)`,
  ],
  storeTables: () => `select name from sqlite_schema where type = 'table' and name like 'holdfast~_%' escape '~'`,
  tableOf: (_, name) => name,
  keepKeys: ['holdfast_start'], // starts that count for a rate
  wrongLabelRows: () => `
    select seq, 0 as is_missing from holdfast_label l
     where not exists (select 1 from holdfast_job j join holdfast_labelled t on t.seq = j.seq, json_each(t.labels) e
                        where j.seq = l.seq and e.key = l.name and e.value = l.value)
     union all
    select t.seq, 1 from holdfast_labelled t, json_each(t.labels) e
     where not exists (select 1 from holdfast_job j where j.seq = t.seq)
        or not exists (select 1 from holdfast_label l where l.name = e.key and l.value = e.value and l.seq = t.seq)`,
  orphanedJournals: () => `
    select seq from (select seq from holdfast_journal union select seq from holdfast_record union select seq from holdfast_await
                     union select seq from holdfast_child union select seq from holdfast_message where seq is not null)
     where seq not in (select seq from holdfast_job)`,
  orphanedRecord: `insert into holdfast_record (seq, no, step, part, body) values (1000000, 1, 'a', 0, '{}')`,
}

/** How long the application waits for other writers. */
const timeout = 5_000

/** A connection of either library, as far as tests use it. */
interface OwnConnection {
  exec(sql: string): unknown
  close(): unknown
  prepare(sql: string): { all(...values: SQLInputValue[]): unknown[]; run(...values: SQLInputValue[]): unknown }
}

/** Uses the library of the store: two libraries in one process do not see each other's locks. */
export function connectBy(driver: SqliteDriver, path: string): OwnConnection {
  return driver === 'node:sqlite' ? new DatabaseSync(path, { timeout }) : new BetterSqlite3(path, { timeout })
}

export function sqliteApplication(path: string, driver: SqliteDriver = 'node:sqlite'): ApplicationSql {
  const connections: OwnConnection[] = []
  const connect = () => {
    const db = connectBy(driver, path)
    connections.push(db)
    return db
  }
  return {
    schema: 'main',
    query: async (text, values) => rowsOf(connections[0] ?? connect(), text, values),
    begin: async (how = '') => {
      if (connections.length === 0) connect() // the first is for single statements
      const tx = new SqliteTx(connect())
      await tx.query(`begin ${how}`)
      return tx
    },
    end: async () => {
      for (const db of connections) db.close()
    },
  }
}

class SqliteTx implements CallerTx {
  readonly tx: OwnConnection

  constructor(db: OwnConnection) {
    this.tx = db
  }

  async query(text: string, values: readonly unknown[] = []) {
    return { rows: rowsOf(this.tx, text, values) }
  }

  async commit(): Promise<void> {
    this.tx.exec('commit')
  }

  async rollback(): Promise<void> {
    this.tx.exec('rollback')
  }
}

function rowsOf(db: OwnConnection, text: string, values: readonly unknown[] = []): Record<string, unknown>[] {
  const statement = db.prepare(text)
  // In better-sqlite3 `all` is refused for a statement that returns no rows.
  if ('reader' in statement && !statement.reader) {
    statement.run(...(values as SQLInputValue[]))
    return []
  }
  return statement.all(...(values as SQLInputValue[])).map((row) => {
    const columns = Object.entries(row as Record<string, unknown>)
    return Object.fromEntries(
      columns.map(([name, value]) => [name, Buffer.isBuffer(value) ? new Uint8Array(value) : value]),
    )
  })
}
