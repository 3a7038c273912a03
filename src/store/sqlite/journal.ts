// The journal of a job: its records, its partial result, its mailbox, and the keys whose signals it awaits. A job has a journal
// if it has a row of `holdfast_journal`, which its first write or its first park makes. All rows are found by the job's number,
// and are removed with the job.

import { bounds } from '../../job/bounds.ts'
import { byteLength } from '../../job/codec.ts'
import {
  type AwaitedKey,
  type JournalWrites,
  journalFull,
  type Message,
  type Parent,
  recordExists,
  type StepRecord,
  signalGone,
} from '../../job/journal.ts'
import { Page } from '../page.ts'
import { Refusal } from '../refusals.ts'
import type { Journal, JournalQuery, MessagesQuery } from '../store.ts'
import { findById } from './job.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Throws a Refusal if one of the writes cannot be made; then the caller rolls back. */
export function writeJournal(tx: SqliteTransaction, seq: number, journal: JournalWrites): void {
  const { records, consume = [], clear = [], partial, awaits } = journal
  openJournal(tx, seq)
  for (const record of records) addRecord(tx, seq, record)
  for (const no of consume) takeMessage(tx, seq, no)
  const remove = 'delete from holdfast_message where seq = ? and name = ? and child is null'
  for (const name of clear) tx.db.run(remove, seq, name)
  if (partial !== undefined) tx.db.run('update holdfast_journal set partial = ? where seq = ?', partial, seq)
  if (awaits !== undefined) setAwaits(tx, seq, awaits)
}

function openJournal(tx: SqliteTransaction, seq: number): void {
  tx.db.run('insert into holdfast_journal (seq) values (?) on conflict (seq) do nothing', seq)
  tx.hasJournals = true
}

function addRecord(tx: SqliteTransaction, seq: number, { no, step, part, body }: StepRecord): void {
  if (no > bounds.recordsMax) throw new Refusal(journalFull())
  const taken = tx.db.get(
    'select 1 from holdfast_record where seq = ?1 and (no = ?2 or step = ?3 and part = ?4)',
    seq,
    no,
    step,
    part,
  )
  if (taken !== undefined) throw new Refusal(recordExists({ step, part }))
  tx.db.run('insert into holdfast_record (seq, no, step, part, body) values (?, ?, ?, ?, ?)', seq, no, step, part, body)
}

/** Of its own mailbox, or of a key. */
function takeMessage(tx: SqliteTransaction, seq: number, no: number): void {
  const isAlive = '(expires_at is null or expires_at > ?)'
  const remove = `delete from holdfast_message where no = ? and (seq = ? or seq is null) and ${isAlive}`
  if (tx.db.run(remove, no, seq, tx.now) === 0) throw new Refusal(signalGone(no))
}

function setAwaits(tx: SqliteTransaction, seq: number, awaits: readonly AwaitedKey[]): void {
  tx.db.run('delete from holdfast_await where seq = ?', seq)
  for (const { key, name } of awaits) {
    tx.db.run('insert or ignore into holdfast_await (key, name, seq) values (?, ?, ?)', key, name, seq)
  }
}

/** A job with a journal is a flow run that has begun. */
export function hasJournal(tx: SqliteTransaction, seq: number): boolean {
  return tx.hasJournals && tx.db.get('select 1 from holdfast_journal where seq = ?', seq) !== undefined
}

/** A park opens the journal: what is woken is a flow run that has begun. */
export function setParked(tx: SqliteTransaction, seq: number, isParked: boolean): void {
  if (isParked) openJournal(tx, seq)
  if (tx.hasJournals)
    tx.db.run('update holdfast_journal set parked = ?1 where seq = ?2 and parked <> ?1', isParked ? 1 : 0, seq)
}

/** A job that is scheduled waits for its messages too. */
export function isParked(tx: SqliteTransaction, seq: number): boolean {
  return tx.hasJournals && tx.db.get('select 1 from holdfast_journal where seq = ? and parked = 1', seq) !== undefined
}

/** Whether a message waits for a key that the job awaits. */
export function hasAwaitedMessage(tx: SqliteTransaction, seq: number): boolean {
  if (!tx.hasMessages || !tx.hasJournals) return false
  const select = `select 1 from holdfast_await a join holdfast_message m on m.key = a.key and m.name = a.name
    where a.seq = ? and m.expires_at > ? limit 1`
  return tx.db.get(select, seq, tx.now) !== undefined
}

/** The job has ended: it awaits nothing any more. Its journal stays with it. */
export function endAwaits(tx: SqliteTransaction, seq: number): void {
  if (tx.hasJournals) tx.db.run('delete from holdfast_await where seq = ?', seq)
}

/** For a job that is removed. */
export function removeJournal(tx: SqliteTransaction, seq: number): void {
  if (tx.hasChildren) tx.db.run('delete from holdfast_child where seq = ?', seq)
  if (tx.hasMessages) tx.db.run('delete from holdfast_message where seq = ?', seq)
  if (!tx.hasJournals || tx.db.run('delete from holdfast_journal where seq = ?', seq) === 0) return
  tx.db.run('delete from holdfast_record where seq = ?', seq)
  tx.db.run('delete from holdfast_await where seq = ?', seq)
}

export function readJournal(tx: SqliteTransaction, { id, after }: JournalQuery): Journal | null {
  const job = findById(tx, id)
  return job === undefined ? null : journalOf(tx, job.seq, { after, isCancelRequested: job.cancel !== null })
}

interface JournalPage {
  readonly after: number | null
  readonly isCancelRequested: boolean
  /** What earlier journals have filled of the same page. */
  readonly bytes?: number
}

export function journalOf(
  tx: SqliteTransaction,
  seq: number,
  { after, isCancelRequested, bytes = 0 }: JournalPage,
): Journal {
  const page = new Page<StepRecord>(bounds.recordsMax, bytes)
  const rows = tx.db.eachTuple<readonly [no: number, step: string, part: number, body: string]>(
    'select no, step, part, body from holdfast_record where seq = ? and no > ? order by no',
    seq,
    after ?? 0,
  )
  for (const [no, step, part, body] of rows)
    if (!page.add({ no, step, part, body }, byteLength(body) + byteLength(step))) break
  const select = 'select partial from holdfast_journal where seq = ?'
  return {
    records: page.entries,
    next: page.isCut ? (page.entries.at(-1)?.no ?? after ?? 0) : null,
    partial: tx.db.get<{ partial: string | null }>(select, seq)?.partial ?? null,
    parent: parentOf(tx, seq),
    cancelRequested: isCancelRequested,
    awaits: tx.db
      .all<AwaitedKey>('select key, name from holdfast_await where seq = ? order by key, name', seq)
      .map(({ key, name }) => ({ key, name })),
  }
}

export function parentOf(tx: SqliteTransaction, seq: number): Parent | null {
  if (!tx.hasChildren) return null
  const row = tx.db.get<{ parent_id: string; step: string }>(
    'select parent_id, step from holdfast_child where seq = ?',
    seq,
  )
  return row ? { id: row.parent_id, step: row.step } : null
}

interface MessageRow {
  readonly no: number
  readonly name: string
  readonly child: string | null
  readonly key: string | null
  readonly value: string
  readonly at: number
}

const messageColumns = 'no, name, child, key, value, at'

/** A page of the messages, as far as `bounds.pageBytes` reach: the oldest of each mailbox. */
export function readMessages(tx: SqliteTransaction, { id, keys }: MessagesQuery): Message[] {
  const page = new Page<Message>(bounds.messagesMax * bounds.messagesMax)
  const job = id === null ? undefined : findById(tx, id)
  const add = (rows: readonly MessageRow[]) => {
    for (const { no, name, child, key, value, at } of rows) {
      if (!page.add({ no, name, child, key, value, at }, byteLength(value))) return
    }
  }
  if (job)
    add(tx.db.all<MessageRow>(`select ${messageColumns} from holdfast_message where seq = ? order by no`, job.seq))
  for (const { key, name } of keys) {
    const ofKey = `select ${messageColumns} from holdfast_message where key = ? and name = ? and expires_at > ? order by no`
    add(tx.db.all<MessageRow>(ofKey, key, name, tx.now))
  }
  return page.entries
}
