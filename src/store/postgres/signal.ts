// Signals. How a message wakes its job is in `schema/functions/deliver.ts`.

import type { CallerTransaction } from '../../adapters/transaction.ts'
import { isRefused, type Refused } from '../../errors.ts'
import { mailboxFull } from '../../job/journal.ts'
import type { JobState } from '../../job/record.ts'
import { cannotSignal, notFound } from '../refusals.ts'
import type { SignalAnswer, SignalRequest, SignalTarget } from '../store.ts'
import { requireTransaction } from './caller.ts'
import type { Database } from './connection/database.ts'
import type { Addressees } from './deliver.ts'
import type { StoreContext } from './enqueue.ts'
import { orRefuseValues } from './refused-values.ts'
import type { Message } from './wake-messages.ts'

/** `deliver` is called once the messages are committed. */
export async function signal(
  context: StoreContext,
  requests: readonly SignalRequest[],
  deliver: (to: Addressees) => Promise<void>,
): Promise<SignalAnswer[]> {
  const answers = await orRefuseValues(requests, (some) => send(context.db, some), nameOf)
  const sent = requests.filter((_, i) => !isRefused(answers[i] as SignalAnswer))
  await deliver({
    ids: [...new Set(sent.flatMap(({ to }) => ('id' in to ? [to.id] : [])))],
    keys: sent.flatMap(({ to, name }) => ('key' in to ? [{ key: to.key, name }] : [])),
  })
  return answers
}

function nameOf({ to, name }: SignalRequest): string {
  return 'id' in to ? `signal ${name} to job ${to.id}` : `signal ${name} to key ${to.key}`
}

async function send(db: Database, requests: readonly SignalRequest[]): Promise<SignalAnswer[]> {
  const call = {
    text: 'select holdfast.signal($1, $2::jsonb, $3)',
    values: [JSON.stringify(requests.map(toJson)), db.now],
  }
  const read = (json: string | null | undefined) => JSON.parse(json ?? '[]') as SentJson[]
  const sent = await db.commitOnce(call, ([row]) => read(row?.[0]), read)
  return requests.map((request, i) => toAnswer(request, sent[i] as SentJson))
}

function toJson({ to, name, value, ttlMs }: SignalRequest): object {
  return 'id' in to ? { id: to.id, name, value } : { key: to.key, name, value, ttlMs }
}

type SentJson = { readonly no: number } | { readonly full: true } | { readonly state: JobState | null }

function toAnswer({ to, name }: SignalRequest, sent: SentJson): SignalAnswer {
  if ('no' in sent) return sent
  if ('full' in sent) return mailboxFull({ name }, to)
  return refusedFor((to as { readonly id: string }).id, sent.state)
}

function refusedFor(id: string, state: JobState | null): Refused {
  return state === null ? notFound(id) : cannotSignal(id, state)
}

const notification = JSON.stringify({ signalled: true } satisfies Message)

/**
 * One statement over the caller's connection. The notification is sent when the caller commits: then a process that listens
 * delivers the message. If it is lost, the next sweep does. `channel`: where to; null: none is sent.
 */
export async function signalIn(
  { db }: StoreContext,
  { tx, channel }: { readonly tx: CallerTransaction; readonly channel: string | null },
  request: SignalRequest,
): Promise<SignalAnswer> {
  await requireTransaction(tx)
  const text = 'select holdfast.signal_in($1::text::jsonb, $2::bigint, $3::text, $4::text)::text as answer'
  const result = await tx.query(db.schema.sql(text), [JSON.stringify(toJson(request)), db.now, channel, notification])
  const [row] = ('rows' in result ? result.rows : result) as readonly { readonly answer: string }[]
  return toAnswer(request, JSON.parse(row?.answer ?? '{}') as SentJson)
}

export async function clearSignals(db: Database, to: SignalTarget, name: string | null): Promise<number> {
  const [id, key] = 'id' in to ? [to.id, null] : [null, to.key]
  const [row] = await db.query('select holdfast.clear_signals($1, $2, $3)', [id, key, name])
  return Number(row?.[0])
}
