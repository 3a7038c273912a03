// No statistics of the application's data. `analyze` copies frequent and typical values of a column into the catalog, where they
// outlive the rows: a person's data was still there after it was erased. So the columns that have such data get no statistics.
// Plans are not made by them: limit keys are looked up by a hash, keys by a unique index, and nothing is looked up by the rest.
// Partitions of `ended` that are made later take this from `ended` (`../functions/partitions.ts`).
//
// Statistics that are there already stay: only a superuser, or a change of the column's type, removes them. The guide for erasing
// has the statement. A change of the type would build indexes anew, and a step builds none.

const columns: Readonly<Record<string, readonly string[]>> = {
  job: ['dedup_key', 'idempotency_key', 'cancel', 'past', 'limit_key', 'headers', 'payload', 'labels', 'parent'],
  ended: [
    ...[
      'dedup_key',
      'idempotency_key',
      'cancel',
      'past',
      'limit_key',
      'annotations',
      'headers',
      'payload',
      'result',
      'error',
    ],
    ...['labels', 'parent'],
  ],
  progress: ['message'],
  dedup: ['key'],
  idempotency: ['key', 'hash'],
  kv: ['key', 'value'],
  flush: ['answer'],
  error_tally: ['name', 'code', 'message'],
  batch: ['name', 'key', 'on_complete', 'paused_by', 'reason'],
  batch_wait: ['limit_key'],
  batch_annotation: ['label'],
  limit_usage: ['limit_key'],
  limit_event: ['limit_key'],
  limit_event_list: ['limit_keys'],
  limit_start: ['limit_key'],
  record: ['step', 'body'],
  journal: ['partial'],
  message: ['key', 'name', 'value'],
  await_key: ['key', 'name'],
  wake_event: ['key', 'name'],
  end_notice: ['job'],
}

function withoutStatistics([table, names]: readonly [string, readonly string[]]): string {
  return `alter table holdfast.${table} ${names.map((name) => `alter column ${name} set statistics 0`).join(', ')};`
}

export const statistics = Object.entries(columns).map(withoutStatistics).join('\n')
