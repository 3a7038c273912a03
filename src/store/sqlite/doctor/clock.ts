// Whether the machine's clock was set back.

import { span } from '../../../runtime/duration.ts'
import { fine, warning } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { readClockNotes } from '../set-back.ts'
import type { SqliteTransaction } from '../transaction.ts'

const reportMs = 24 * 60 * 60_000
const behindMs = 1_000

const fix =
  'Let a time service adjust the clock in small steps (chrony, systemd-timesyncd), and set it before the processes start.'

export function clockSetBack(tx: SqliteTransaction): Finding[] {
  const { swept_at: sweptAt, set_back_at: at, set_back_ms: ms } = readClockNotes(tx)
  if (sweptAt > tx.now + behindMs) {
    const sentence = `The clock is ${span(sweptAt - tx.now)} behind the last sweep: it was set back. The next sweep shortens leases, delays, windows and retention.`
    return [warning('clock', sentence, fix, { behindMs: sweptAt - tx.now })]
  }
  if (at === null || ms === null || tx.now > at + reportMs) return [fine('clock', 'The clock was not set back lately.')]
  const sentence = `The clock was set back by ${span(ms)}, ${span(tx.now - at)} ago. Leases, delays, windows and retention were shortened; jobs with a time of their own wait for it.`
  return [warning('clock', sentence, fix, { at: new Date(at).toISOString(), setBackMs: ms })]
}
