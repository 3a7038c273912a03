// Rules of the claim, each as the text that states it and what stands there when it is broken. A test that shows a rule
// runs once more without it, and must then see the harm.
import type { Rule } from './hand.ts'

/** Transactions in progress that the bound passes become gaps. */
export const gaps: Rule = {
  from: 'where x.xid >= v_cursor.xid and x.xid < v_next.xid',
  to: 'where false',
  alone: { from: 'where x.xid >= v_xid and x.xid < v_next_xid', to: 'where false' },
}

/** From the old bound on, inclusive: the bound after a scan that came to its end is a number nobody had yet. */
export const gapsFromTheBoundOn: Rule = {
  from: 'x.xid >= v_cursor.xid and',
  to: 'x.xid > v_cursor.xid and',
  alone: { from: 'x.xid >= v_xid and', to: 'x.xid > v_xid and' },
}

/** A gap is taken from once its transaction has ended, not before. */
export const onlyEndedGaps: Rule = {
  from: 'pg_visible_in_snapshot(g.xid, m.snapshot) as ended',
  to: 'true as ended',
  alone: { from: 'pg_visible_in_snapshot(u.xid, pg_current_snapshot()) as ended', to: 'true as ended' },
}

/** Where the limit ends in or before a gap, it stays. */
export const gapsStayWhenCut: Rule = {
  from: 'not g.ended or (c.short and (l.xid is null or g.xid >= l.xid))',
  to: 'not g.ended',
}

/** Of the gaps that the limit left, all stay, not only the one it ended in. */
export const unreachedGapsStay: Rule = { from: 'g.xid >= l.xid', to: 'g.xid = l.xid' }

/** Where the limit cuts a gap short, it is remembered how far. */
export const howFar: Rule = { from: 'case when g.xid = l.xid then l.ord else g.ord end as ord', to: 'g.ord as ord' }

/** The cleaned list of gaps is written even where nothing was taken. */
export const cleanedListIsWritten: Rule = { from: 'if v_ended or (v_next.xid', to: 'if (v_next.xid' }

/** A scan that came to its end puts the bound behind everything it walked over. */
export const boundMovesToTheEnd: Rule = {
  from: 'if v_taken < v_most and (v_taken = v_ahead',
  to: 'if false and (v_taken = v_ahead',
}

/** Claims of one lane come one after the other. */
export const laneLock: Rule = {
  from: 'end if;\n  perform holdfast.lock_lanes(v_lanes);\n  v_now',
  to: 'end if;\n  v_now',
  alone: {
    from: `,
          pg_advisory_xact_lock(LANE_LOCKS, p_lane);`,
    to: ';',
  },
}

/** The lock has a statement of its own, before the one that reads the cursor; here it is taken by that one. */
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

/** The peek at many lanes looks at gaps that have ended, too. */
export const peekAtGaps: Rule = {
  from: 'where ahead.has_jobs or gaps.ended',
  to: 'where ahead.has_jobs',
}

/** Lanes where there is something to take come before those where gaps have ended and nothing is in them. */
export const lanesWithJobsFirst: Rule = {
  from: '(v_busy || v_untidy)[1:v_most]',
  to: '(v_untidy || v_busy)[1:v_most]',
}
