-- A snapshot cursor with all the rules that let every job be found, and nothing else: one kind of lane, no attempts, no retries,
-- no history. Every statement of a claim reads a payload row at most once.
--
-- A claim passes over a stretch of the index (lane, ready_xid, ord) and takes all rows that it can see there. So its lease does
-- not list jobs. It names the stretches, both ends included, and the transactions that were still open inside them. A row that is
-- in a stretch, and not of such a transaction, was claimed by this claim. That stays true, for two reasons: a job that leaves a
-- claim gets another ready_xid, and no transaction begins behind a bound.
create table job (
  lane int not null,
  ready_xid xid8 not null default pg_current_xact_id(),
  ord bigint not null,
  id uuid not null,
  payload text not null,
  constraint job_position primary key (lane, ready_xid, ord),
  constraint job_id unique (id)
);
create sequence job_ord;
create table lane_cursor (
  lane int not null,
  seq bigint generated always as identity,
  xid xid8 not null,
  ord bigint not null,
  gap_xid xid8[] not null,
  gap_ord bigint[] not null,
  constraint lane_cursor_newest primary key (lane, seq)
);
create table lease (
  token uuid constraint lease_token primary key,
  worker text not null,
  expires_at timestamptz not null,
  lane int not null,
  from_xid xid8[] not null,
  from_ord bigint[] not null,
  to_xid xid8[] not null,
  to_ord bigint[] not null,
  except_xid xid8[] not null
);
create index lease_expiry on lease (expires_at);
insert into lane_cursor (lane, xid, ord, gap_xid, gap_ord) values (1, '0', 0, '{}', '{}');

-- One row, or none: columns as arrays, and the payloads separated by line breaks, which stored JSON never contains.
create function claim_jobs(p_lane int, p_max int, p_lease interval, p_worker text, p_token uuid)
returns table (xids xid8[], ords bigint[], ids uuid[], payloads text)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
declare
  cur record;
  snap pg_snapshot;
  t0 timestamptz;
  new_xid xid8;
  new_ord bigint;
  gaps xid8[];
  gap_ords bigint[];
  fresh xid8[] := '{}';
  ended boolean := false;
  late_count int := 0;
  late_xids xid8[];
  late_ords bigint[];
  late_ids uuid[];
  late_payloads text;
  from_xids xid8[] := '{}';
  from_ords bigint[] := '{}';
  to_ords bigint[] := '{}';
  to_xids xid8[];
  want int;
  n int := 0;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'a claim needs read committed';
  end if;
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'a claim must not share a transaction that has written';
  end if;
  -- A statement of its own: the snapshots below must be younger than the lock.
  perform set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock(7001, p_lane);
  select c.seq, c.xid, c.ord, c.gap_xid, c.gap_ord into cur
    from lane_cursor c where c.lane = p_lane order by c.seq desc limit 1;
  if not found then
    raise exception 'no lane %', p_lane;
  end if;
  new_xid := cur.xid;
  new_ord := cur.ord;
  gaps := cur.gap_xid;
  gap_ords := cur.gap_ord;

  -- Jobs of transactions that were open when the bound passed them and have ended since.
  if cardinality(gaps) > 0 then
    with s as materialized (select pg_current_snapshot() as snap),
    gap as materialized (
      select u.xid, u.ord, pg_visible_in_snapshot(u.xid, s.snap) as has_ended
        from s, unnest(cur.gap_xid, cur.gap_ord) u (xid, ord)
    ),
    late as materialized (
      select j.* from gap cross join lateral (
        select j.ready_xid, j.ord, j.id, j.payload from job j
         where j.lane = p_lane and j.ready_xid = gap.xid and j.ord > gap.ord
         order by j.ord limit p_max
      ) j
       where gap.has_ended order by j.ready_xid, j.ord limit p_max
    ),
    taken as materialized (
      select count(*)::int as n, array_agg(l.ready_xid) as xids, array_agg(l.ord) as ords, array_agg(l.id) as ids,
             string_agg(l.payload, e'\n') as payloads
        from late l
    ),
    kept as materialized (
      select gap.xid, case when gap.xid = t.xids[t.n] then t.ords[t.n] else gap.ord end as ord
        from gap, taken t where not gap.has_ended or (t.n >= p_max and gap.xid >= t.xids[t.n])
    )
    select t.n, t.xids, t.ords, t.ids, t.payloads,
           (select coalesce(array_agg(k.xid), '{}') from kept k), (select coalesce(array_agg(k.ord), '{}') from kept k),
           (select bool_or(gap.has_ended) from gap)
      into late_count, late_xids, late_ords, late_ids, late_payloads, gaps, gap_ords, ended
      from taken t;
    if late_count > 0 then
      select array_agg(s.xid), array_agg(s.first), array_agg(s.last) into from_xids, from_ords, to_ords
        from (select u.xid, min(u.ord) as first, max(u.ord) as last
                from unnest(late_xids, late_ords) u (xid, ord) group by u.xid) s;
    end if;
  end if;
  to_xids := from_xids;

  want := p_max - late_count;
  if want > 0 then
    t0 := clock_timestamp();
    select pg_current_snapshot(), count(*), array_agg(t.ready_xid), array_agg(t.ord), array_agg(t.id),
           string_agg(t.payload, e'\n')
      into snap, n, xids, ords, ids, payloads
      from (select j.ready_xid, j.ord, j.id, j.payload from job j
             where j.lane = p_lane and (j.ready_xid, j.ord) > (cur.xid, cur.ord)
               and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot())
             order by j.ready_xid, j.ord limit want) t;
    if n = want then
      new_xid := xids[n];
      new_ord := ords[n];
    elsif n > 0 or clock_timestamp() - t0 > interval '2 ms' then
      new_xid := pg_snapshot_xmax(snap);
      new_ord := 0;
    end if;
    if new_xid > cur.xid then
      -- From the old bound on, inclusive: its transaction may be one that had not begun when the bound was set.
      select coalesce(array_agg(x), '{}') into fresh from pg_snapshot_xip(snap) x where x >= cur.xid and x < new_xid;
      gaps := gaps || fresh;
      gap_ords := gap_ords || array_fill(0::bigint, array[cardinality(fresh)]);
    end if;
    if n > 0 then
      from_xids := from_xids || xids[1];
      from_ords := from_ords || ords[1];
      to_xids := to_xids || xids[n];
      to_ords := to_ords || ords[n];
    end if;
  end if;

  if late_count + n = 0 and not ended and new_xid = cur.xid then
    return;
  end if;
  insert into lane_cursor (lane, xid, ord, gap_xid, gap_ord) values (p_lane, new_xid, new_ord, gaps, gap_ords);
  delete from lane_cursor c where c.lane = p_lane and c.seq = cur.seq;
  if late_count + n = 0 then
    return;
  end if;
  insert into lease (token, worker, expires_at, lane, from_xid, from_ord, to_xid, to_ord, except_xid)
  values (p_token, p_worker, clock_timestamp() + p_lease, p_lane, from_xids, from_ords, to_xids, to_ords, fresh);
  if late_count > 0 then
    xids := late_xids || xids;
    ords := late_ords || ords;
    ids := late_ids || ids;
    payloads := concat_ws(e'\n', late_payloads, payloads);
  end if;
  return next;
end $$;

-- Settles all jobs of a claim, in the order of the index; answers how many it found.
create function settle_claim(p_token uuid) returns bigint
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  held lease%rowtype;
  settled bigint := 0;
  n bigint;
begin
  delete from lease l where l.token = p_token returning * into held;
  -- Without a lease there are no stretches. One statement a stretch, because with a join the planner could begin with the table.
  for i in 1 .. coalesce(cardinality(held.from_xid), 0) loop
    delete from job j
     where j.lane = held.lane and j.ready_xid <> all (held.except_xid)
       and (j.ready_xid, j.ord) >= (held.from_xid[i], held.from_ord[i])
       and (j.ready_xid, j.ord) <= (held.to_xid[i], held.to_ord[i]);
    get diagnostics n = row_count;
    settled := settled + n;
  end loop;
  return settled;
end $$;

-- Settles some jobs of a claim, each by its place. The last of them deletes the lease; if two callers settle the last ones at
-- once, it stays until it expires. Rows are looked up in a lateral query, so that no plan can begin with the table. They are
-- matched again by ready_xid, so that a row which got another ready_xid while this statement waited for it is not deleted.
create function settle_jobs(p_token uuid, p_xids xid8[], p_ords bigint[]) returns bigint
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  held lease%rowtype;
  settled bigint;
begin
  select l.* into held from lease l where l.token = p_token;
  if not found then
    return 0;
  end if;
  delete from job j
   where j.ready_xid = any (p_xids) and j.ctid = any (array(
     select t.ctid from unnest(p_xids, p_ords) u (xid, ord) cross join lateral (
       select k.ctid from job k where k.lane = held.lane and k.ready_xid = u.xid and k.ord = u.ord offset 0
     ) t
   ));
  get diagnostics settled = row_count;
  for i in 1 .. cardinality(held.from_xid) loop
    perform from job j
     where j.lane = held.lane and j.ready_xid <> all (held.except_xid)
       and (j.ready_xid, j.ord) >= (held.from_xid[i], held.from_ord[i])
       and (j.ready_xid, j.ord) <= (held.to_xid[i], held.to_ord[i]) limit 1;
    if found then
      return settled;
    end if;
  end loop;
  delete from lease l where l.token = p_token;
  return settled;
end $$;
