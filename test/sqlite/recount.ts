// Counts the rows of the tables, to compare them with the counts that the store keeps.
import assert from 'node:assert/strict'
import type { DatabaseSync } from 'node:sqlite'

const listed = `
  with listed (seq, queue, state) as (
    select seq, queue, 'ready' from holdfast_ready
    union all select seq, queue, 'held' from holdfast_held
    union all select seq, queue, 'scheduled' from holdfast_scheduled
    union all select l.seq, j.queue, 'running' from holdfast_lease l left join holdfast_job j on j.seq = l.seq
    union all select e.seq, s.queue, s.state from holdfast_ended e left join holdfast_retention_class s on s.no = e.retention_class
  )`

/** Every job is in exactly one list, every list names only jobs, every id is live once, and the counts are right. */
export function assertCountsEqualRecount(db: DatabaseSync): void {
  const rows = (sql: string) =>
    db
      .prepare(sql)
      .all()
      .map((row) => ({ ...row }))
  db.exec('begin')
  try {
    assert.deepEqual(
      rows(`${listed} select seq from holdfast_job except select seq from listed`),
      [],
      'jobs in no list',
    )
    assert.deepEqual(
      rows(`${listed} select seq from listed except select seq from holdfast_job`),
      [],
      'lists without job',
    )
    assert.deepEqual(rows(`${listed} select seq from listed group by seq having count(*) > 1`), [], 'jobs in two lists')
    const counts = 'held, scheduled, ready, running, done, dead, cancelled'
    const sums = counts.replace(/\w+/g, (state) => `coalesce(sum(l.state = '${state}'), 0) as ${state}`)
    assert.deepEqual(
      rows(`select name, ${counts} from holdfast_queue order by name`),
      rows(
        `${listed} select q.name, ${sums}
           from holdfast_queue q left join listed l on l.queue = q.no group by q.no order by q.name`,
      ),
      'counts equal a recount',
    )
    assert.deepEqual(
      rows('select queue, key, admitted, running from holdfast_key order by queue, key'),
      rows(
        `${listed} select j.queue, j.limit_key as key, sum(l.state <> 'held') as admitted,
                          sum(l.state = 'running' and q.key_max_starts is not null) as running
           from listed l join holdfast_job j on j.seq = l.seq join holdfast_queue q on q.no = j.queue
          where j.limit_key is not null and l.state in ('held', 'ready', 'running') group by 1, 2 order by 1, 2`,
      ),
      'limit keys count their jobs',
    )
    assert.deepEqual(
      rows(
        `select queue, key, batch from holdfast_held
         except select h.queue, h.key, h.batch from holdfast_held h join holdfast_key k on k.queue = h.queue and k.key = h.key
          where k.has_line = 1
         except select w.queue, w.key, w.batch from holdfast_batch_wait w join holdfast_batch b on b.no = w.batch
          where b.has_wait = 1`,
      ),
      [],
      'held jobs that no admission would look at',
    )
    assert.deepEqual(
      rows('select no, waiting, ready, running from holdfast_batch order by no'),
      rows(
        `${listed} select b.no, coalesce(sum(l.state in ('held', 'scheduled', 'ready')), 0) as waiting,
                          coalesce(sum(l.state = 'ready'), 0) as ready,
                          coalesce(sum(l.state = 'running'), 0) as running
           from holdfast_batch b left join holdfast_job j on j.batch = b.no left join listed l on l.seq = j.seq
          group by b.no order by b.no`,
      ),
      'batches count their items',
    )
    assert.deepEqual(
      rows(
        `select b.id, b.done, b.dead, b.cancelled from holdfast_batch b join holdfast_job j on j.batch = b.no
           join holdfast_ended e on e.seq = j.seq join holdfast_retention_class s on s.no = e.retention_class
          group by b.no
         having b.done < sum(s.state = 'done') or b.dead < sum(s.state = 'dead')
             or b.cancelled < sum(s.state = 'cancelled')`,
      ),
      [],
      'batches count ended items, which may have been pruned',
    )
    assert.deepEqual(
      rows(
        `select batch, queue, priority from holdfast_ready where batch > 0
         except select batch, queue, priority from holdfast_lane`,
      ),
      [],
      'items in lanes that no claim reads',
    )
    assert.deepEqual(rows('pragma integrity_check'), [{ integrity_check: 'ok' }])
  } finally {
    db.exec('rollback')
  }
}
