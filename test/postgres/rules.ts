// Rules of the claim: the text that states each, and its replacement when the rule is removed. A test that shows a rule runs
// once more without it, and must then see the harm.
import type { Rule } from './world.ts'

/** Open transactions that the bound passes become gaps. */
export const gaps: Rule = {
  from: 'where x.xid >= v_cursor.xid and x.xid < v_next.xid',
  to: 'where false',
  alone: { from: 'where x.xid >= v_xid and x.xid < v_next_xid', to: 'where false' },
}

/** From the old bound on, inclusive: the bound after a complete scan is a number that no transaction has had yet. */
export const gapsFromTheBoundOn: Rule = {
  from: 'x.xid >= v_cursor.xid and',
  to: 'x.xid > v_cursor.xid and',
  alone: { from: 'x.xid >= v_xid and', to: 'x.xid > v_xid and' },
}

/** Jobs of a gap are taken once its transaction has ended, not before. */
export const onlyEndedGaps: Rule = {
  from: 'pg_visible_in_snapshot(g.xid, m.snapshot) as ended',
  to: 'true as ended',
  alone: { from: 'pg_visible_in_snapshot(u.xid, pg_current_snapshot()) as ended', to: 'true as ended' },
}

/** If the limit ends in or before a gap, the gap stays. */
export const gapsStayWhenCut: Rule = {
  from: 'not g.ended or (c.short and (l.xid is null or g.xid >= l.xid))',
  to: 'not g.ended',
}

/** All gaps that the limit did not reach stay, not only the one in which it ended. */
export const unreachedGapsStay: Rule = { from: 'g.xid >= l.xid', to: 'g.xid = l.xid' }

/** If the limit cuts a gap short, the position in the gap is stored. */
export const howFar: Rule = { from: 'case when g.xid = l.xid then l.ord else g.ord end as ord', to: 'g.ord as ord' }

/** The cleaned list of gaps is written even if no job was taken. */
export const cleanedListIsWritten: Rule = { from: 'if v_ended or (v_next.xid', to: 'if (v_next.xid' }

/** A complete scan moves the bound behind everything that it scanned. */
export const boundMovesToTheEnd: Rule = {
  from: 'if v_taken < v_most and (v_taken = v_ahead',
  to: 'if false and (v_taken = v_ahead',
}

/** Claims of one lane run one after the other. */
export const laneLock: Rule = {
  from: 'end if;\n  perform holdfast.lock_lanes(v_lanes);\n  v_now',
  to: 'end if;\n  v_now',
  alone: {
    from: `,
          pg_advisory_xact_lock(LANE_LOCKS, p_lane);`,
    to: ';',
  },
}

/** The lock has its own statement, before the one that reads the cursor. Without the rule that one takes the lock. */
export const readAfterLock: Rule = {
  from: 'cross join lateral (select * from holdfast.lane_cursor where lane = u.lane order by no desc limit 1) c\n  loop',
  to: `cross join lateral (select c.* from (select holdfast.lock_lanes(case when u.lane & 1 = 0 then array[u.lane] end)) l,
                                              holdfast.lane_cursor c
                            where c.lane = u.lane order by c.no desc limit 1) c
  loop`,
}

/** A claim is a transaction of its own. */
export const ownTransaction: Rule = {
  from: 'if pg_current_xact_id_if_assigned() is not null then',
  to: 'if false then',
}

/** A claim needs read committed. */
export const readCommitted: Rule = {
  from: `if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'a claim`,
  to: `if false then
    raise exception 'a claim`,
}

/** The time is read after the wait for the lanes. */
export const clockAfterLock: Rule = {
  from: 'end if;\n  perform holdfast.lock_lanes(v_lanes);\n  v_now := holdfast.now_ms(p_now);',
  to: 'end if;\n  v_now := holdfast.now_ms(p_now);\n  perform holdfast.lock_lanes(v_lanes);',
}

/** A claim that was sent again finds its lease. */
export const replay: Rule = {
  from: 'if exists (select from holdfast.lease l where l.token = p_token) then',
  to: 'if false then',
}

/** A claim that was sent again waits for the first. */
export const tokenLock: Rule = {
  from: ', pg_advisory_xact_lock(TOKEN_LOCKS, hashtext(p_token::text));',
  to: ';',
  alone: { from: ', pg_advisory_xact_lock(TOKEN_LOCKS, hashtext(p_token::text)),', to: ',' },
}

/** The look at many lanes includes gaps that have ended. */
export const peekAtGaps: Rule = {
  from: 'where ahead.has_jobs or gaps.ended',
  to: 'where ahead.has_jobs',
}

/** Lanes with jobs come before lanes where gaps have ended and no job is left. */
export const lanesWithJobsFirst: Rule = {
  from: '(v_busy || v_untidy)[1:v_most]',
  to: '(v_untidy || v_busy)[1:v_most]',
}
