-- The prototype that the design started from. It was changed only so that it runs here: its tables are written out, a payload is text
-- as in the other queues, and a job has the id of the benchmark in addition to its own.
create table job (
  id bigint generated always as identity primary key,
  lane int not null default 1,
  ready_xid xid8 not null default pg_current_xact_id(),
  attempts smallint not null default 0,
  payload text not null,
  ref uuid not null
);
create index job_position on job (lane, ready_xid, id);
create table lane_cursor (
  lane int not null,
  seq bigint generated always as identity,
  xid xid8 not null,
  id bigint not null,
  gap_xid xid8[] not null,
  gap_id bigint[] not null,
  primary key (lane, seq)
);
create table claim (token uuid primary key, worker text not null, expires_at timestamptz not null, job_ids bigint[] not null, job_xids xid8[] not null);
create index claim_expiry on claim (expires_at);
create or replace function claim_jobs(p_lane int, p_max int, p_lease interval, p_worker text, p_token uuid default gen_random_uuid())
returns table (token uuid, id bigint, ready_xid xid8, attempts smallint, payload text)
language plpgsql set enable_seqscan=off set enable_bitmapscan=off set enable_sort=off as $$
declare
  cur lane_cursor%rowtype; left_over int := p_max; ids bigint[]; xs xid8[]; ids2 bigint[]; xs2 xid8[];
  snap pg_snapshot; ngx xid8[]; ngi bigint[]; nx xid8; ni bigint; n int; t0 timestamptz; changed boolean := false; e boolean;
begin
  if current_setting('transaction_isolation') <> 'read committed' then raise exception 'claim needs read committed'; end if;
  if pg_current_xact_id_if_assigned() is not null then raise exception 'claim must not share a transaction that has written'; end if;
  perform set_config('synchronous_commit','off',true); perform pg_advisory_xact_lock(7001, p_lane);
  if exists (select 1 from claim c where c.token = p_token) then
    return query select c.token, j.id, j.ready_xid, j.attempts, j.payload from claim c, unnest(c.job_ids, c.job_xids) u(i,x) join job j on j.id = u.i and j.ready_xid = u.x where c.token = p_token;
    return;
  end if;
  select * into cur from lane_cursor c where c.lane = p_lane order by seq desc limit 1;
  if not found then cur.xid := '0'; cur.id := 0; cur.gap_xid := '{}'; cur.gap_id := '{}'; cur.seq := 0; end if;
  ngx := cur.gap_xid; ngi := cur.gap_id; nx := cur.xid; ni := cur.id;
  if cardinality(cur.gap_xid) > 0 then
    with s as materialized (select pg_current_snapshot() as snap),
    g as materialized (select u.x, u.i, pg_visible_in_snapshot(u.x, s.snap) as ended from s, unnest(cur.gap_xid, cur.gap_id) u(x,i)),
    late as materialized (select j.rx, j.id from g cross join lateral (select j.ready_xid as rx, j.id from job j where j.lane = p_lane and j.ready_xid = g.x and j.id > g.i order by j.id limit p_max) j where g.ended order by j.rx, j.id limit p_max),
    agg as materialized (select array_agg(l.id order by l.rx, l.id) as ids, array_agg(l.rx order by l.rx, l.id) as xs, count(*) as n, max(l.rx) as lx from late l),
    keep as (select g.x, case when g.x = agg.lx then agg.ids[agg.n] else g.i end as i from g, agg where not g.ended or (agg.n >= p_max and g.x >= agg.lx))
    select agg.ids, agg.xs, agg.n, (select coalesce(array_agg(k.x), '{}') from keep k), (select coalesce(array_agg(k.i), '{}') from keep k), (select bool_or(g.ended) from g) into ids, xs, n, ngx, ngi, changed from agg;
    left_over := p_max - n;
  end if;
  if left_over > 0 then
    t0 := clock_timestamp();
    select pg_current_snapshot(), array_agg(s.id order by s.ready_xid, s.id), array_agg(s.ready_xid order by s.ready_xid, s.id) into snap, ids2, xs2
      from (select j.ready_xid, j.id from job j where j.lane = p_lane and (j.ready_xid, j.id) > (cur.xid, cur.id) and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot()) order by j.ready_xid, j.id limit left_over) s;
    n := coalesce(cardinality(ids2), 0);
    if n = left_over then nx := xs2[n]; ni := ids2[n];
    elsif n > 0 or clock_timestamp() - t0 > interval '2 ms' then nx := pg_snapshot_xmax(snap); ni := 0; end if;
    if nx > cur.xid then
      select ngx || coalesce(array_agg(x),'{}'), ngi || coalesce(array_agg(0::bigint),'{}') into ngx, ngi from pg_snapshot_xip(snap) x where x >= cur.xid and x < nx;
    end if;
    ids := ids || ids2; xs := xs || xs2;
  end if;
  if ids is null and not changed and nx = cur.xid then return; end if;
  insert into lane_cursor(lane, xid, id, gap_xid, gap_id) values (p_lane, nx, ni, ngx, ngi);
  delete from lane_cursor c where c.lane = p_lane and c.seq = cur.seq;
  if ids is null then return; end if;
  insert into claim(token, worker, expires_at, job_ids, job_xids) values (p_token, p_worker, clock_timestamp() + p_lease, ids, xs);
  return query select p_token, j.id, j.ready_xid, j.attempts, j.payload from unnest(ids) u(i) join job j on j.id = u.i;
end $$;
