// TIME: the clock of a call.

export const time = `
create function holdfast.now_ms(p_now bigint) returns bigint language sql volatile as $holdfast$
  select coalesce(p_now, floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
$holdfast$;

-- The time of a call: the caller's, if the caller is trusted (checks.ts), or else the server's.
create function holdfast.call_ms(p_now bigint) returns bigint language sql volatile as $holdfast$
  select holdfast.now_ms(case when p_now is not null and holdfast.is_trusted() then p_now end)
$holdfast$;
`
