// `holdfast.enqueue(queue, payload, options)`: jobs from triggers and other languages, by plain SQL.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test, { describe } from 'node:test'
import { decodeLabels, isUnfit, resolveLabels } from '../../src/job/labels.ts'
import { keyAt } from '../../src/job/limit-key.ts'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne, readJob, rejects } from '../conformance/expect.ts'
import { postgresDialect } from '../conformance/sql-postgres.ts'
import { type CallerTx, inWorld, setup, until, useDatabase, type World } from './world.ts'

useDatabase()

interface Answer {
  readonly id: string
  readonly status: string
}

const call = 'select * from holdfast.enqueue($1, $2::text::jsonb, $3::text::jsonb)'

async function enqueue(on: World | CallerTx, queue: unknown, payload: unknown, options: unknown = {}): Promise<Answer> {
  const values = [queue, JSON.stringify(payload), JSON.stringify(options)]
  const [row] = await ('rows' in on ? on.rows(call, values) : on.run(call, values))
  return row as unknown as Answer
}

test(
  'a job is claimed, run and counted like any other',
  inWorld(async (world) => {
    const [answer] = await world.rows(`select * from holdfast.enqueue('mail', '{"to": "ada"}')`)
    const { id, status } = answer as unknown as Answer
    assert.equal(status, 'created')
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab]/)
    const job = await readJob(world.holdfast, id)
    assert.deepEqual([job.state, job.priority, job.maxAttempts, job.payload], ['ready', 5, 5, { to: 'ada' }])
    assert.ok(Math.abs(job.createdAt.getTime() - Date.now()) < 60_000)
    const lease = await claimOne(world.holdfast, 'mail')
    assert.equal(lease.job.id, id)
    await world.recount()
    await lease.done('sent')
    assert.deepEqual((await readJob(world.holdfast, id)).result, 'sent')
  }),
)

test(
  'jobs enqueued by SQL and by the client are claimed in the order in which they were enqueued',
  inWorld(async (world) => {
    await world.enqueue('mail', 1)
    await enqueue(world, 'mail', 2)
    await world.enqueue('mail', 3)
    await enqueue(world, 'mail', 0, { priority: 0 })
    assert.deepEqual(await world.claim(), [0, 1, 2, 3])
  }),
)

describe('the stored definition', () => {
  test(
    'gives attempts, priority and limit key, unless the call states them',
    inWorld(async (world) => {
      const limit = { key: 'customer.id', concurrency: 1 }
      await world.holdfast.claim([defineQueue('mail', { attempts: 2, priority: 3, limit })])
      const read = async ({ id }: Answer) => readJob(world.holdfast, id)
      const plain = await read(await enqueue(world, 'mail', { customer: { id: 'ada' } }))
      assert.deepEqual([plain.maxAttempts, plain.priority, plain.limitKey], [2, 3, 'ada'])
      const stated = await read(await enqueue(world, 'mail', {}, { attempts: 7, priority: 0, limit_key: 12 }))
      assert.deepEqual([stated.maxAttempts, stated.priority, stated.limitKey], [7, 0, '12'])
      assert.equal((await read(await enqueue(world, 'mail', {}, { limit_key: null }))).limitKey, null)
      await enqueue(world, 'mail', { customer: { id: 'ada' } })
      await world.holdfast.sweep()
      const claimed = await world.holdfast.claim(['mail'], { max: 10 })
      assert.equal(claimed.filter(({ job }) => (job.payload as { customer?: unknown }).customer).length, 1)
      for (const lease of claimed) await lease.done()
      await world.recount()
    }),
  )

  test(
    'a missing limit key that SQL cannot derive is refused, and the message says what to pass',
    inWorld(async (world) => {
      await world.holdfast.claim([defineQueue('byPath', { limit: { key: 'customer.id', concurrency: 1 } })])
      await world.holdfast.claim([defineQueue('byCode', { limit: { key: () => 'k', concurrency: 1 } })])
      const bad = [{}, null, 5, [], ...[1.5, true, null, {}, [], '', 'x'.repeat(513), 1e16].map(customer)]
      for (const payload of bad) {
        await assert.rejects(enqueue(world, 'byPath', payload), {
          ...{ code: 'HF108', message: /^LIMIT_KEY_REQUIRED: .*customer\.id.*limit_key/ },
        })
      }
      await assert.rejects(enqueue(world, 'byCode', {}), { code: 'HF108', message: /^LIMIT_KEY_REQUIRED: .*limit_key/ })
      await enqueue(world, 'byCode', {}, { limit_key: 'k' })
      for (const [number, key] of [
        ['5.00', '5'],
        ['1.2e2', '120'],
        ['-7.0', '-7'],
        ['-0', '0'],
        ['9007199254740991', '9007199254740991'],
      ]) {
        const text = `select id from holdfast.enqueue('byCode', '{}', '{"limit_key": ${number}}')`
        const [row] = await world.rows(text)
        assert.equal((await readJob(world.holdfast, row?.['id'] as string)).limitKey, key, number)
      }
      for (const number of ['1.5', '1e21', '9007199254740992', '-1e400']) {
        const text = `select id from holdfast.enqueue('byCode', '{}', '{"limit_key": ${number}}')`
        await assert.rejects(world.rows(text), { code: 'HF106' }, number)
      }
      await assert.rejects(enqueue(world, 'byCode', {}, { limit_key: '' }), { code: 'HF106' })
      await assert.rejects(enqueue(world, 'byCode', {}, { limit_key: {} }), { code: 'HF106' })
    }),
  )

  test(
    'SQL and the client read the same limit key at a path',
    inWorld(async (world) => {
      const values = ['ada', 7, -7, 1e3, 0, '7', 9_007_199_254_740_991, 'é', '\ud83d\ude00', ' ', 'a.b', '"', '\\u0000']
      for (const id of [...values, 1.5, true, null, [], {}, '', 2 ** 53]) {
        const text = JSON.stringify({ a: [], customer: { id, b: 1 } })
        const [row] = await world.rows(`select holdfast.limit_key_at('customer.id', $1) as key`, [text])
        assert.equal(row?.['key'] ?? undefined, keyAt('customer.id', text), text)
      }
    }),
  )

  test(
    'gives labels, unless the call states them; a value that cannot be a label is refused',
    inWorld(async (world) => {
      await world.holdfast.claim([defineQueue('mail', { labels: { customer: 'customer.id', n: 'n' } })])
      const labels = async (payload: unknown, options = {}) =>
        (await readJob(world.holdfast, (await enqueue(world, 'mail', payload, options)).id)).labels
      assert.deepEqual(await labels({ customer: { id: 'ada' }, n: 7 }), { customer: 'ada', n: '7' })
      const stated = { labels: { customer: 'eve', region: 'eu' } }
      assert.deepEqual(await labels({ customer: { id: 'ada' }, n: 7 }, stated), { ...stated.labels, n: '7' })
      assert.deepEqual(await labels(5), {})
      assert.deepEqual(await labels(5, { labels: {} }), {})
      assert.deepEqual(await labels(5, { labels: null }), {})
      assert.deepEqual(await labels(customer('x'.repeat(129)), stated), stated.labels)
      const message = /^INVALID_LABEL: the label customer of queue mail is customer\.id of the payload/
      await assert.rejects(enqueue(world, 'mail', customer('x'.repeat(129))), { code: 'HF110', message })
      for (const bad of [5, 'a', [], { a: 1 }, { a: '' }, { a: null }, { '1': 'a' }, { a: 'x'.repeat(129) }])
        await assert.rejects(enqueue(world, 'mail', 5, { labels: bad }), { code: 'HF106', message: /labels/ })
      assert.deepEqual(await world.rows(postgresDialect.wrongLabelRows('holdfast')), [])
    }),
  )

  test(
    'SQL and the client find the same labels in a payload',
    inWorld(async (world) => {
      const rules = { customer: 'customer.id' }
      const values = [
        'ada',
        7,
        -7,
        1e3,
        0,
        'é',
        '\ud83d\ude00',
        ' ',
        '"',
        1.5,
        true,
        null,
        [],
        {},
        '',
        2 ** 53,
        'x'.repeat(128),
      ]
      for (const id of [...values, 'x'.repeat(129), 'é'.repeat(65), 'x'.repeat(9_999)]) {
        const payload = JSON.stringify({ a: [], customer: { id, b: 1 } })
        const expected = resolveLabels(rules, { payload })
        const found = world.rows(`select holdfast.find_labels($1, 'mail', $2, null)::text as labels`, [rules, payload])
        if (isUnfit(expected)) await assert.rejects(found, { code: 'HF110' }, payload)
        else
          assert.deepEqual(
            decodeLabels(((await found)[0]?.['labels'] as string | null) ?? null),
            decodeLabels(expected),
            payload,
          )
      }
    }),
  )

  test(
    'a client with an outdated definition reads it again, also in a caller’s transaction',
    inWorld(async (world) => {
      const mail = world.holdfast.queue<unknown>('mail')
      const read = async (id: string) => readJob(world.holdfast, id)
      const caller = async (payload: unknown, options = {}) => {
        const tx = await world.begin()
        const { id } = await mail.enqueue(payload, { tx: tx.client, ...options })
        await tx.commit()
        return read(id)
      }
      await mail.enqueue(customer('ada'))
      await caller(customer('ada'))
      const other = await open(postgres({ pool: world.pool, schema: world.schema.name }))
      await other.claim([
        defineQueue('mail', { attempts: 2, priority: 3, limit: { key: 'customer.id', concurrency: 1 } }),
      ])
      const first = await caller(customer('ada'))
      assert.deepEqual([first.maxAttempts, first.priority, first.limitKey], [2, 3, 'ada'])
      await other.claim([defineQueue('mail', { attempts: 4, priority: 6, limit: { key: 'n', concurrency: 1 } })])
      const second = await read((await mail.enqueue({ n: 5 })).id)
      assert.deepEqual([second.maxAttempts, second.priority, second.limitKey], [4, 6, '5'])
      await other.claim([defineQueue('mail', { attempts: 5, priority: 1, limit: { key: () => 'k', concurrency: 1 } })])
      const tx = await world.begin()
      await rejects(mail.enqueue({ n: 5 }, { tx: tx.client }), 'LIMIT_KEY_REQUIRED')
      const { id } = await mail.enqueue({ n: 5 }, { tx: tx.client, limitKey: 'k' })
      await tx.commit()
      const third = await read(id)
      assert.deepEqual([third.maxAttempts, third.priority, third.limitKey], [5, 1, 'k'])
      await rejects(mail.enqueue({ n: 5 }), 'LIMIT_KEY_REQUIRED')
      await other.close()
    }),
  )

  test(
    'in a caller’s transaction that is older than the queue, jobs get the values of the client’s definition',
    inWorld(async (world) => {
      const read = async (id: string) => readJob(world.holdfast, id)
      const tx = await world.begin()
      await tx.run('set transaction isolation level repeatable read')
      await tx.run('select 1')
      const limit = { key: 'customer.id', concurrency: 1 }
      const mail = world.holdfast.queue<unknown>('mail', { attempts: 2, priority: 3, limit })
      await mail.enqueue(customer('bob'))
      const plain = await mail.enqueue(customer('ada'), { tx: tx.client })
      const stated = await mail.enqueue({}, { tx: tx.client, attempts: 7, priority: 0, limitKey: null })
      await rejects(mail.enqueue({}, { tx: tx.client }), 'LIMIT_KEY_REQUIRED')
      await tx.commit()
      const [first, second] = [await read(plain.id), await read(stated.id)]
      assert.deepEqual([first.maxAttempts, first.priority, first.limitKey], [2, 3, 'ada'])
      assert.deepEqual([second.maxAttempts, second.priority, second.limitKey], [7, 0, null])
      await world.recount()
    }),
  )
})

function customer(id: unknown): unknown {
  return { customer: { id } }
}

test(
  'it accepts every option except replacing',
  inWorld(async (world) => {
    const id = randomUUID()
    const runAt = new Date('2999-01-01T12:00:00Z')
    await enqueue(world, 'mail', null, {
      ...{ id: id.toUpperCase(), run_at: runAt.toISOString(), start_before: runAt.getTime() + 1, priority: 1 },
      ...{ attempts: 9, timeout_ms: 3_000, dedup: { key: 'd', scope: 'waiting' }, idempotency_key: 'i' },
      ...{ headers: { h: 'v' }, notify: false },
    })
    const job = await readJob(world.holdfast, id)
    assert.deepEqual([job.state, job.runAt, job.startBefore?.getTime()], ['scheduled', runAt, runAt.getTime() + 1])
    assert.deepEqual([job.priority, job.maxAttempts, job.timeoutMs], [1, 9, 3_000])
    assert.deepEqual([job.dedupKey, job.idempotencyKey, job.headers, job.payload], ['d', 'i', { h: 'v' }, null])
    const later = await enqueue(world, 'mail', 1, { delay_ms: 60_000, attempts: null })
    assert.equal((await readJob(world.holdfast, later.id)).state, 'scheduled')
    await world.rows(`select holdfast.enqueue('mail', '1', jsonb_build_object('run_at', now() - interval '1 hour'))`)
    await world.rows(`select holdfast.enqueue('mail', null, null)`)
    assert.deepEqual(await world.claim(), [1, null])
  }),
)

test(
  'the job belongs to the transaction of the call, savepoints included',
  inWorld(async (world) => {
    const tx = await world.begin()
    await enqueue(tx, 'mail', 'kept', { dedup: { key: 'a' } })
    await tx.run('savepoint here')
    await enqueue(tx, 'mail', 'undone', { dedup: { key: 'b' } })
    await tx.run('rollback to savepoint here')
    assert.equal((await enqueue(tx, 'mail', 'instead', { dedup: { key: 'b' } })).status, 'created')
    assert.deepEqual(await world.claim(), [])
    await tx.commit()
    assert.deepEqual(await world.claim(), ['kept', 'instead'])
    const other = await world.begin()
    await enqueue(other, 'mail', 'lost', { idempotency_key: 'i' })
    await other.rollback()
    assert.deepEqual(await world.claim(), [])
  }),
)

test(
  'a trigger enqueues a job for each row, if and only if the rows are committed',
  inWorld(async (world) => {
    await world.rows('create table holdfast.account (no int, name text)')
    await world.rows(`create function holdfast.welcome() returns trigger language plpgsql as $$
      begin
        perform holdfast.enqueue('welcome', jsonb_build_object('name', new.name),
          jsonb_build_object('dedup', jsonb_build_object('key', new.name)));
        return null;
      end $$`)
    await world.rows(`create trigger welcome after insert on holdfast.account
      for each row execute function holdfast.welcome()`)
    await world.rows(`insert into holdfast.account select n, 'name ' || n % 100 from generate_series(1, 200) n`)
    await assert.rejects(
      world.rows(`insert into holdfast.account select 1 / (3 - n), 'x' from generate_series(1, 3) n`),
    )
    const names = (await world.claim('welcome', 1_000)).map((payload) => (payload as { name: string }).name)
    assert.deepEqual(names.slice(0, 3), ['name 1', 'name 2', 'name 3'])
    assert.equal(names.length, 100)
  }),
)

test(
  'a waiting claim is woken by the commit',
  inWorld(async (world) => {
    await using listening = await open(postgres({ url: world.url, schema: world.schema.name }))
    await enqueue(world, 'mail', 0)
    await (await claimOne(listening, 'mail')).done()
    const tookMs: number[] = []
    for (let n = 0; n < 5; n++) {
      const claim = listening.claim(['mail'], { wait: '30s' })
      await listening.queues()
      const tx = await world.begin()
      await enqueue(tx, 'mail', n)
      const startedAt = performance.now()
      await tx.commit()
      await (await claim)[0]?.done()
      tookMs.push(performance.now() - startedAt)
    }
    const late = tookMs.filter((ms) => ms > 500)
    assert.ok(late.length <= 1, `took ${tookMs.map((ms) => ms.toFixed(0)).join(', ')} ms`)
  }),
)

test(
  'a notification is sent for a ready job, unless the call disables it',
  inWorld(async (world) => {
    const client = await world.connect()
    await client.query(`listen "${world.schema.channel}"`)
    const received: (string | undefined)[] = []
    client.on('notification', ({ payload }) => received.push(payload))
    await enqueue(world, 'mail', 1, { notify: false })
    await enqueue(world, 'mail', 2, { delay_ms: 60_000 })
    await enqueue(world, 'mail', 3)
    await until(async () => received.length > 0, 'a notification')
    assert.deepEqual(
      received.map((text) => JSON.parse(text ?? '')),
      [{ ready: [['mail', 1]] }],
    )
  }),
)

describe('keys', () => {
  test(
    'of dedup are compared with those of the client, in every scope',
    inWorld(async (world) => {
      const live = await enqueue(world, 'mail', 1, { dedup: { key: 'live' } })
      assert.deepEqual(await enqueue(world, 'mail', 2, { dedup: { key: 'live' } }), { ...live, status: 'duplicate' })
      assert.equal(await world.enqueue('mail', 3, { dedup: { key: 'live' } }), live.id)
      const window = await enqueue(world, 'mail', 4, { dedup: { key: 'w', scope: { window_ms: 3_600_000 } } })
      await world.enqueue('mail', 5, { dedup: { key: 'theirs', scope: 'waiting' } })
      assert.deepEqual(await world.claim(), [1, 4, 5])
      assert.equal((await enqueue(world, 'mail', 6, { dedup: { key: 'live' } })).status, 'duplicate')
      assert.equal((await enqueue(world, 'mail', 7, { dedup: { key: 'w' } })).id, window.id)
      assert.equal((await enqueue(world, 'mail', 8, { dedup: { key: 'theirs' } })).status, 'created')
    }),
  )

  const payload = { b: [1, 0.1, 1e21, 1.5e-7, -0], a: { z: 'é😀\n', 10: null, 9: true }, '': 'x'.repeat(100) }
  const same = JSON.stringify({
    a: { 9: true, 10: null, z: 'é😀\n' },
    '': 'x'.repeat(100),
    b: [1, 0.1, 1e21, 1.5e-7, 0],
  })

  test(
    'of idempotency match the same payload, in any JSON notation, and from SQL or the client',
    inWorld(async (world) => {
      const first = await enqueue(world, 'mail', payload, { idempotency_key: 'sql' })
      const again = { id: first.id, status: 'duplicate' }
      assert.deepEqual(await enqueue(world, 'mail', JSON.parse(same), { idempotency_key: 'sql' }), again)
      const options = { idempotencyKey: 'sql' }
      assert.deepEqual(await world.holdfast.queue('mail').enqueue(JSON.parse(same), options), again)
      await (await claimOne(world.holdfast, 'mail')).done()
      assert.deepEqual(await world.holdfast.queue('mail').enqueue(payload, options), again)
      const theirs = await world.enqueue('mail', payload, { idempotencyKey: 'client' })
      const mine = await enqueue(world, 'mail', JSON.parse(same), { idempotency_key: 'client' })
      assert.deepEqual(mine, { id: theirs, status: 'duplicate' })
    }),
  )

  test(
    'of idempotency refuse another payload',
    inWorld(async (world) => {
      const { id } = await enqueue(world, 'mail', 1, { idempotency_key: 'sql' })
      const mismatch = { code: 'HF101', message: new RegExp(`^IDEMPOTENCY_MISMATCH: .*"sql".*${id}`) }
      await assert.rejects(enqueue(world, 'mail', 2, { idempotency_key: 'sql' }), mismatch)
      const client = world.holdfast.queue('mail')
      for (const other of [2, '1', '\u0000', [1]]) {
        await rejects(client.enqueue(other, { idempotencyKey: 'sql' }), 'IDEMPOTENCY_MISMATCH', { key: 'sql', id })
      }
      await client.enqueue('\u0000', { idempotencyKey: 'nul' })
      await assert.rejects(enqueue(world, 'mail', 'x', { idempotency_key: 'nul' }), { code: 'HF101' })
    }),
  )

  test(
    'that are the id of a live job are refused',
    inWorld(async (world) => {
      const id = await world.enqueue('mail', 1)
      await assert.rejects(enqueue(world, 'mail', 2, { id }), { code: 'HF102', message: /^DUPLICATE_JOB_ID: / })
      assert.deepEqual(await world.claim(), [1])
    }),
  )
})

describe('bad input', () => {
  const nested = (levels: number) => `${'['.repeat(levels)}${']'.repeat(levels)}`
  const refused: readonly (readonly [string, string, readonly (readonly [unknown, string, string?])[]])[] = [
    ['HF103', 'INVALID_NAME', [null, '', 'a b', 'a\n', 'ü', 'x'.repeat(256)].map((name) => [name, '1'] as const)],
    [
      'HF104',
      'INVALID_PAYLOAD',
      [
        ...['9007199254740993', '[{"a": 1e400}]', '0.1234567890123456789', '{"a": [1e-320]}'].map(
          (json) => ['mail', json] as const,
        ),
        ['mail', nested(501)],
      ],
    ],
    ['HF105', 'PAYLOAD_TOO_LARGE', [['mail', JSON.stringify('x'.repeat(1024 * 1024 - 1))]]],
    ['HF107', 'INVALID_ID', ['"x"', '1', '{}', '""'].map((id) => ['mail', '1', `{"id": ${id}}`] as const)],
    [
      'HF106',
      'INVALID_OPTION',
      [
        ...['[]', '1', '"x"', '{"delay": 1}', '{"delayMs": 1}', '{"dedup": {"key": "k", "replace": true}}'],
        ...[
          '{"delay_ms": -1}',
          '{"delay_ms": 1.5}',
          '{"delay_ms": "1"}',
          '{"delay_ms": 1e30}',
          '{"delay_ms": 3155760000001}',
        ],
        ...[
          '{"delay_ms": 1, "run_at": 1}',
          '{"run_at": "soon"}',
          '{"run_at": "infinity"}',
          '{"run_at": -1}',
          '{"run_at": []}',
        ],
        ...[
          '{"start_before": "1969-01-01"}',
          '{"priority": 10}',
          '{"priority": -1}',
          '{"attempts": 0}',
          '{"attempts": 10001}',
        ],
        ...['{"timeout_ms": 0}', '{"dedup": "k"}', '{"dedup": {}}', '{"dedup": {"key": ""}}', '{"dedup": {"key": 1}}'],
        ...['{"dedup": {"key": "k", "scope": "dead"}}', '{"dedup": {"key": "k", "scope": {"window": 1}}}'],
        ...['{"dedup": {"key": "k", "scope": {"window_ms": 0}}}', '{"dedup": {"key": "k", "scope": 1}}'],
        ...[
          '{"dedup": {"key": "k", "scope": {"window_ms": 1, "x": 1}}}',
          '{"idempotency_key": ""}',
          '{"idempotency_key": {}}',
        ],
        ...[`{"idempotency_key": "${'ü'.repeat(257)}"}`, '{"headers": []}', '{"headers": {"a": 1}}', '{"notify": 1}'],
        ...[`{"headers": {"a": "${'x'.repeat(16 * 1024)}"}}`],
      ].map((options) => ['mail', '1', options] as const),
    ],
  ]

  for (const [code, name, calls] of refused) {
    test(
      `is refused with ${name}`,
      inWorld(async (world) => {
        for (const [queue, payload, options = '{}'] of calls) {
          const what = `${String(queue).slice(0, 40)} ${payload.slice(0, 40)} ${options.slice(0, 80)}`
          await assert.rejects(world.rows(call, [queue, payload, options]), (error: Error & { code: string }) => {
            assert.equal(error.code, code, `${what}: ${error.message}`)
            assert.match(error.message, new RegExp(`^${name}: .*\\.$`), what)
            return true
          })
        }
        assert.deepEqual(await world.rows('select from holdfast.queue'), [])
      }),
    )
  }

  test(
    'that is no JSON to PostgreSQL is refused by itself',
    inWorld(async (world) => {
      await assert.rejects(world.rows(call, ['mail', '"\\u0000"', '{}']), { code: '22P05' })
    }),
  )

  test(
    'does not include values within the bounds',
    inWorld(async (world) => {
      const payloads = [
        ...['9007199254740991', '-0', '1.10', '0.1', '1e300', '5e-300', '123456789012345.6', nested(500)],
        ...['"é😀\\n\\u0001"', '{"": {}}', JSON.stringify('x'.repeat(1024 * 1024 - 2)), '"12345678901234567890"'],
      ]
      const client = await world.connect()
      await client.query('set extra_float_digits = 0') // the server then writes fewer digits than a number has
      for (const payload of payloads) await client.query(world.schema.sql(call), ['x'.repeat(255), payload, '{}'])
      const read = await world.claim('x'.repeat(255))
      assert.deepEqual(
        read,
        payloads.map((payload) => JSON.parse(payload === '-0' ? '0' : payload)),
      )
    }),
  )
})

describe('the first job of a queue and priority', () => {
  test(
    'makes other first enqueues wait for its transaction, and delays no enqueue to a known queue and priority',
    inWorld(async (world) => {
      await world.enqueue('mail', 'known')
      const other = await world.another()
      const tx = await world.begin()
      await enqueue(tx, 'mail', 'urgent', { priority: 0 })
      await enqueue(tx, 'post', 'first')
      await other.queue('mail').enqueue('goes on')
      const waiting = other.queue('post').enqueue('second')
      await world.waiters(1)
      assert.deepEqual(await world.claim(['mail', 'post']), ['known', 'goes on'])
      await tx.commit()
      await waiting
      assert.deepEqual(await world.claim(['mail', 'post']), ['urgent', 'first', 'second'])
    }),
  )

  test(
    'leaves nothing behind when it is rolled back',
    inWorld(async (world) => {
      const other = await world.another()
      const tx = await world.begin()
      await enqueue(tx, 'post', 'first')
      const waiting = other.queue('post').enqueue('second')
      await world.waiters(1)
      await tx.rollback()
      await waiting
      await enqueue(world, 'post', 'third')
      assert.deepEqual(await world.claim('post'), ['second', 'third'])
    }),
  )

  for (const level of ['repeatable read', 'serializable']) {
    test(
      `in ${level} is enqueued, unless another transaction has created the queue since`,
      inWorld(async (world) => {
        const tx = await world.begin(`begin isolation level ${level}`)
        await tx.run('select 1 from holdfast.queue')
        await enqueue(tx, 'mail', 'first')
        await enqueue(tx, 'mail', 'second', { dedup: { key: 'k' } })
        await tx.commit()
        const late = await world.begin(`begin isolation level ${level}`)
        await late.run('select 1 from holdfast.queue')
        await world.enqueue('post', 1)
        await assert.rejects(enqueue(late, 'post', 2), { code: '40001' })
        await late.rollback()
        assert.deepEqual(await world.claim(), ['first', 'second'])
      }),
    )
  }
})

for (const name of ['100% "sure"', `a${'ü'.repeat(31)}`]) {
  test(`it works, and wakes, in a schema named ${name}`, async () => {
    await using world = await setup()
    await using holdfast = await open(postgres({ url: world.url, schema: name }))
    const waiting = holdfast.claim(['mail'], { wait: '20s' })
    await holdfast.queues()
    const quoted = `"${name.replaceAll('"', '""')}"`
    await world.pool.query(`select ${quoted}.enqueue('mail', '1')`)
    assert.equal((await waiting)[0]?.job.payload, 1)
    await assert.rejects(
      world.pool.query(`select ${quoted}.enqueue('mail', '1', '{"x": 1}')`),
      /^error: INVALID_OPTION/,
    )
    const client = await world.connect()
    await client.query('begin')
    await holdfast.queue('mail').enqueue(2, { tx: client })
    await client.query('commit')
  })
}
