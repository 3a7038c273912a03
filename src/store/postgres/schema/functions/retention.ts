// RETENTION: how long finished jobs are kept.

export const retention = `
-- The retention class of a retention: all jobs of a class are in partitions of the same width.
create function holdfast.retention_class(p_retain_ms bigint) returns smallint language sql immutable as $holdfast$
  select case when p_retain_ms is null then 5 when p_retain_ms >= 5184000000 then 4 when p_retain_ms >= 172800000 then 3
              when p_retain_ms >= 3600000 then 2 else 1 end::smallint
$holdfast$;

create function holdfast.keep_until(p_retain_ms bigint, p_now bigint) returns bigint language sql immutable as $holdfast$
  select coalesce(p_now + p_retain_ms, 9223372036854775806)
$holdfast$;

create function holdfast.retention_width(p_class int) returns bigint language sql immutable as $holdfast$
  select case p_class when 1 then 60000 when 2 then 3600000 when 3 then 86400000 when 4 then 2592000000 end::bigint
$holdfast$;
`
