// Checks for commits that wait for a synchronous standby. Enqueues, settlements and key-value writes wait with them; claims,
// renewals and sweeps do not.

import { span } from '../../../runtime/duration.ts'
import { counted, fine, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { standbyFix } from '../connection/failures.ts'
import type { Examination } from './examine.ts'

/** A commit that waits for less may be a commit as usual. */
const waitMinMs = 2_000

/** `known`: this role may see which standbys are connected, and how. */
const selectWaiting = `
  select current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
         (select count(*) from pg_stat_activity a
           where a.wait_event = 'SyncRep' and a.query_start < clock_timestamp() - ${waitMinMs} * interval '1 millisecond'),
         (select floor(extract(epoch from clock_timestamp() - min(a.query_start)) * 1000)::bigint
            from pg_stat_activity a where a.wait_event = 'SyncRep'),
         (select count(*) from pg_stat_replication r where r.sync_state in ('sync', 'quorum')),
         (select count(*) filter (where r.sync_state is null) = 0 from pg_stat_replication r)`

export async function waitingCommits({ db, request }: Examination): Promise<Finding[]> {
  const id = 'waiting-commits'
  const { stall } = db
  const notRepaired = request.fix ? ' Nothing was repaired.' : ''
  if (stall) return [wrong(id, `${stall.message}${notRepaired}`, standbyFix, { standbys: stall.facts['standbys'] })]
  const [row] = await db.query(selectWaiting, [])
  const [standbys = '', level, commits, waitedMs, connected, isKnown] = row ?? []
  const facts = { standbys, commits: Number(commits), connected: isKnown === 't' ? Number(connected) : null }
  const names = `synchronous_standby_names = '${standbys}'`
  if (facts.commits > 0) {
    const sentence = `${counted(facts.commits, 'commit')} ${facts.commits === 1 ? 'waits' : 'wait'} for a synchronous standby (${names}), the oldest for ${span(Number(waitedMs))}: no enqueue and no settlement is answered.`
    return [wrong(id, sentence + notRepaired, standbyFix, { ...facts, waitedMs: Number(waitedMs) })]
  }
  const waits = standbys !== '' && !['off', 'local'].includes(level ?? '')
  if (waits && facts.connected === 0)
    return [
      wrong(
        id,
        `No synchronous standby is connected (${names}): the next commit waits until one is.${notRepaired}`,
        standbyFix,
        facts,
      ),
    ]
  return [fine(id, 'No commit waits for a standby.', facts)]
}
