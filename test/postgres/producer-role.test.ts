// The rights of a producer, tested with its own login and its own SQL, on every function of the schema. The functions are read
// from the catalogs. So a function that is added later must be denied to producers, or is called here with hostile arguments too.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import pg from 'pg'
import { encodeDefinition, undefinedQueue } from '../../src/job/stored-definition.ts'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { grantRoles } from '../../src/store/postgres/schema/grant.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import { usesByRole } from '../../src/store/postgres/schema/roles.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { Random } from '../torture/random.ts'
import { assertRecount } from './exactness-recount.ts'
import { type RoleDatabase, setup as roleGround } from './role-database.ts'

/** Every function that a producer may call, and nothing else. */
const granted = [
  'admit(text[],bigint[],bigint)',
  'answer_of(uuid)',
  'await_admissions(text)',
  'await_claims(text,integer)',
  'define_queue(text,jsonb,boolean,boolean,boolean,integer)',
  'enqueue(jsonb,uuid,bigint,boolean)',
  'enqueue(text,jsonb,jsonb)',
  'enqueue_in(jsonb,boolean,bigint)',
  'enqueue_one(uuid,uuid,integer,uuid,smallint,text,text,bigint,bigint,text,uuid)',
  'enqueue_plain(uuid,uuid[],integer[],smallint[],text[],text[],bigint[],bigint[],bigint[],text[],integer[],uuid[],bigint,text,uuid[],text[],integer[],text[])',
  'now_ms(bigint)',
  'open_lanes(text[],smallint[],bigint,bigint,uuid,boolean)',
  'outcomes(uuid[],bigint)',
  'withdraw(uuid,bigint)',
]

/** A definition with a decimal point in a number, which JSON.stringify never writes. */
function withPoint(name: string): string {
  return definitionJson({ [name]: 5 }).replace(`"${name}":5`, `"${name}":5.0`)
}

describe('a producer’s rights', () => {
  test('are the functions for producers, and no other of the schema', async () => {
    await using scene = await setup()
    const functions = await functionsOf(scene)
    const denied = functions.filter(({ name, types }) => !granted.includes(`${name}(${types})`))
    assert.ok(denied.length > 50)
    for (const { name, types } of denied) {
      const values =
        types === ''
          ? ''
          : types
              .split(',')
              .map((type) => `null::${type}`)
              .join(', ')
      await assert.rejects(scene.producer.query(`select holdfast.${name}(${values})`), { code: '42501' }, name)
    }
    const callable = functions.filter(({ mayCall }) => mayCall).map(({ name, types }) => `${name}(${types})`)
    assert.deepEqual(callable.toSorted(), granted)
  })

  test('include only one table, that of the version, and no sequence', async () => {
    await using scene = await setup()
    const relations = await scene.database.rows<{ name: string }>(
      `select c.relname as name from pg_class c
        where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'S')
          and (has_table_privilege($1, c.oid, 'select') or has_table_privilege($1, c.oid, 'insert')
               or has_table_privilege($1, c.oid, 'update') or has_table_privilege($1, c.oid, 'delete'))`,
      [scene.role],
    )
    assert.deepEqual(
      relations.map(({ name }) => name),
      ['meta'],
    )
  })

  test('include only functions that run as their owner with a fixed search path', async () => {
    await using scene = await setup()
    const functions = await functionsOf(scene)
    for (const { name, runsAsOwner, config, mayCall } of functions) {
      if (mayCall && name !== 'now_ms') assert.ok(runsAsOwner, name)
      if (runsAsOwner) assert.ok(config?.includes('search_path=pg_catalog, pg_temp'), name)
    }
  })
})

describe('a producer', () => {
  test('cannot pass a time of its own: jobs start no sooner, and no more of them than the rate allows', async () => {
    await using scene = await setup()
    const { holdfast, producer } = scene
    const sent = holdfast.queue('sent', { limit: { key: () => 'k', rate: { count: 1, per: '1h' } } })
    await sent.enqueueMany([{ payload: 1 }, { payload: 2 }])
    assert.equal((await sent.claim({ max: 9 })).length, 1)
    const { no } = await queueOf(scene, 'sent')
    const later = Date.now() + 7_200_000
    await producer.query('select holdfast.admit($1, $2, $3)', [[`${no}:k`], [], later])
    assert.equal((await holdfast.stats('sent')).held, 1)
    assert.equal((await sent.claim({ max: 9 })).length, 0)

    const opened = await producer.query(`select lane, epoch from holdfast.open_lanes('{mail}', '{5}', 1, 1)`)
    const [{ lane, epoch }] = opened.rows
    const one = `select holdfast.enqueue_one($1, $2, $3, $5, 5::smallint, '1', null, null, $4, null)`
    const plain = `select holdfast.enqueue_plain(null, array[$1::uuid], array[$2::int], '{5}', '{1}', null, null, '{60000}', null, null,
      array[$2::int], array[$4::uuid], $3)`
    const many = `select holdfast.enqueue($1, null, $2, false)`
    const ids = [crypto.randomUUID(), crypto.randomUUID(), crypto.randomUUID()]
    await producer.query(one, [crypto.randomUUID(), ids[0], lane, 1, epoch])
    await producer.query(plain, [ids[1], lane, 1, epoch])
    const job = { id: ids[2], lane, epoch, payload: '1', maxAttempts: 5 }
    await producer.query(many, [JSON.stringify([[job]]), later])
    for (const id of ids) {
      const { createdAt } = (await holdfast.job(id as string)) ?? {}
      assert.ok(createdAt && Math.abs(createdAt.getTime() - Date.now()) < 60_000, id)
    }
  })

  test('cannot open, read or count for a batch', async () => {
    await using scene = await setup()
    const { producer } = scene
    const batch = uuid()
    await scene.database.rows(`select holdfast.open_batch($1, 'b', null, 3, null, '{"secret": true}', null, null)`, [
      batch,
    ])
    await assert.rejects(producer.query(`select * from holdfast.read_batches('{1}')`), { code: '42501' })
    await assert.rejects(producer.query(`select holdfast.end_items(1, 99, 99)`), { code: '42501' })
    await assert.rejects(
      producer.query(`select * from holdfast.open_lanes('{mail}', '{5}', 1, 1, $1)`, [batch]),
      refusal,
    )
    const [{ no: lane, epoch }] = (await scene.database.rows<{ no: number; epoch: string }>(
      `select lane as no, epoch from holdfast.open_lanes('{items}', '{5}', 86400000, 1209600000, $1)`,
      [batch],
    )) as [{ no: number; epoch: string }]
    const plain =
      'select holdfast.enqueue_plain(null, array[gen_random_uuid()], array[$1::int], array[5::smallint], array[$2], null, null, null, null, null, array[$1::int], array[$3::uuid], null)'
    await assert.rejects(producer.query(plain, [lane, '1', epoch]), { code: 'HF006' })
    await assertRecount(scene.database.pool)
  })

  test('can define a new queue, and cannot change one that is defined', async () => {
    await using scene = await setup()
    const define = (name: string, running: number | null, key: number | null) => {
      const limit = running === null ? null : { concurrency: running, rate: null }
      const keyLimit = key === null ? null : { concurrency: key, rate: null }
      const definition = definitionJson({
        retainDoneMs: 1_000,
        retainDeadMs: null,
        limit,
        keyLimit,
        key: { path: 'a.b' },
      })
      return scene.producer.query('select * from holdfast.define_queue($1, $2, true)', [name, definition])
    }
    await define('fresh', 3, 2)
    assert.deepEqual(await limitsOf(scene, 'fresh'), { is_named: true, max_running: 3, key_max_running: 2 })
    await define('guarded', 1, 1)
    assert.deepEqual(await limitsOf(scene, 'guarded'), { is_named: true, max_running: 50, key_max_running: null })
    await define('fresh', 4, 4)
    assert.deepEqual(await limitsOf(scene, 'fresh'), { is_named: true, max_running: 3, key_max_running: 2 })
    await assert.rejects(define('other', 0, null), refusal)
    await assert.rejects(define('other', null, 0), refusal)
    await assert.rejects(define('no such name', 1, null), { code: 'HF103' })
    await scene.holdfast.queue('fresh', { limit: { concurrency: 9 } }).enqueue(1)
    assert.deepEqual(await limitsOf(scene, 'fresh'), { is_named: true, max_running: 9, key_max_running: null })
  })

  test('cannot leave out the labels of a definition', async () => {
    await using scene = await setup()
    const { producer, holdfast, database, role } = scene
    const labelled = defineQueue<{ name?: string }>('labelled', { labels: { customer: 'name' } })
    await holdfast.queue(labelled).enqueue({ name: 'first' })
    const [{ lane, epoch }] = (
      await producer.query(`select lane, epoch from holdfast.open_lanes('{labelled}', '{5}', 1, 1)`)
    ).rows
    const payload = '{"name":"ada"}'
    const send = {
      plain: (labels: string | null) =>
        producer.query(
          `select holdfast.enqueue_plain(null, array[gen_random_uuid(), gen_random_uuid()], array[$1::int], array[5::smallint],
             array['1', $2], null, null, null, null, null, array[$1::int], array[$3::uuid], null, null, null, array[null, $4])`,
          [lane, payload, epoch, labels],
        ),
      job: (labels: string | null) => {
        const stated = labels === null ? {} : { labels: JSON.parse(labels) }
        const job = { id: uuid(), lane, epoch, payload, maxAttempts: 5, dedupKey: 'd', dedupScope: 'live', ...stated }
        return producer.query('select holdfast.enqueue($1, null, null, false)', [JSON.stringify([[job]])])
      },
    }
    for (const enqueue of Object.values(send)) {
      for (const labels of [null, '{}', '{"other":"ada"}']) await assert.rejects(enqueue(labels), { code: 'HF006' })
      await enqueue('{"customer":"ada"}')
    }
    const one = 'select holdfast.enqueue_one($1, $2, $3, $4, 5::smallint, $5, null, null, null, null)'
    await assert.rejects(producer.query(one, [uuid(), uuid(), lane, epoch, payload]), { code: 'HF006' })
    await producer.query(one, [uuid(), uuid(), lane, epoch, '{"where":"here"}'])
    await using client = await open(database.urlOf(role))
    await client.queue('labelled').enqueueMany([{ payload: { name: 'ada' } }, { payload: 5 }])
    const { jobs } = await holdfast.jobs({ queue: 'labelled', include: ['payload'] })
    const wrong = jobs.filter(({ payload, labels }) => (payload as { name?: string }).name !== labels['customer'])
    assert.deepEqual(wrong, [])
    assert.equal((await holdfast.count({ labels: { customer: 'ada' } })).count, 3)
    await assertRecount(database.pool)
  })

  test('can read answers of its own calls, and not those of others', async () => {
    await using scene = await setup()
    const flush = crypto.randomUUID()
    const answer = 'select holdfast.answer_of($1) as answer'
    await scene.database.rows(`select holdfast.record_flush($1, 1, '{"secret": true}')`, [flush])
    assert.equal((await scene.producer.query(answer, [flush])).rows[0].answer, null)
    const own = crypto.randomUUID()
    await scene.producer.query(`select holdfast.enqueue('[]', $1, null, false)`, [own])
    assert.equal((await scene.producer.query(answer, [own])).rows[0].answer, '[]')
  })

  test('is refused with arguments that no client sends, and harms no job beside them', async () => {
    await using scene = await setup()
    const { producer, database } = scene
    const opened = await producer.query(`select lane, epoch from holdfast.open_lanes('{mail}', '{5}', 1, 1)`)
    const [{ lane, epoch }] = opened.rows
    const { no: queue } = await queueOf(scene, 'mail')
    const { no: other } = await queueOf(scene, 'guarded')
    const one = (changed: Record<string, unknown>) => {
      const values = {
        flush: uuid(),
        id: uuid(),
        lane,
        epoch,
        attempts: 5,
        payload: '1',
        headers: null,
        timeout: null,
        ...changed,
      }
      return ['select holdfast.enqueue_one($1, $2, $3, $4, $5, $6, $7, $8, null, null)', Object.values(values)] as const
    }
    const plain = (changed: Record<string, unknown>) => {
      const values = {
        ...{ ids: [uuid(), uuid()], lanes: [lane], attempts: [5], payloads: ['1', '2'], headers: null, timeouts: null },
        ...{ delays: null, runAts: null, limitKeys: null, known: [lane], epochs: [epoch], labels: null },
        ...changed,
      }
      const text =
        'select holdfast.enqueue_plain(null, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, null, null, null, $12)'
      return [text, Object.values(values)] as const
    }
    const job = (changed: Record<string, unknown>) => {
      const values = { id: uuid(), lane, epoch, payload: '1', maxAttempts: 5, ...changed }
      return ['select holdfast.enqueue($1, null, null, false)', [JSON.stringify([[values]])]] as const
    }
    const named = (changed: Record<string, unknown>) => {
      const values = { id: uuid(), name: 'mail', priority: 5, payload: '1', maxAttempts: 5, ...changed }
      return ['select holdfast.enqueue_in($1, true, null)', [JSON.stringify([values])]] as const
    }
    const separator = '\u001e'
    const nine = Object.fromEntries(Array.from({ length: 9 }, (_, n) => [`l${n}`, 'a']))
    const badLabels = [
      null,
      1,
      'a',
      [],
      { a: 1 },
      { a: '' },
      { a: 'x'.repeat(129) },
      { '1': 'a' },
      { 'a=b': 'a' },
      nine,
    ]
    const hostile = [
      ...[{ lane: lane + 1 }, { lane: 999_999 }, { lane: null }, { attempts: 0 }, { attempts: null }].map(one),
      ...[{ payload: `1${separator}2` }, { payload: 'no JSON' }, { payload: null }, { headers: '[]' }].map(one),
      ...[{ headers: '{"a": 1}' }, { headers: `{}${separator}` }, { timeout: -1 }, { flush: null }, { id: null }].map(
        one,
      ),
      ...[{ payload: `"${'x'.repeat(1_048_576)}"` }, { headers: JSON.stringify({ a: 'x'.repeat(16_384) }) }].map(one),
      ...[{ lanes: [lane, lane, lane] }, { lanes: [] }, { lanes: null }, { lanes: [lane + 1] }].map(plain),
      ...[{ attempts: [5, 5, 5] }, { attempts: [0] }, { attempts: [null, 5] }, { payloads: ['1'] }].map(plain),
      ...[{ payloads: ['1', '2', '3'] }, { payloads: ['1', null] }, { payloads: ['1', `2${separator}`] }].map(plain),
      ...[{ ids: [uuid(), null] }, { ids: [] }, { ids: null }, { headers: ['{}'] }, { headers: ['{}', '1'] }].map(
        plain,
      ),
      ...[{ timeouts: [0, 1] }, { timeouts: [1] }, { delays: [-1, 0] }, { runAts: [-1, 1] }].map(plain),
      ...[{ runAts: [Number.MAX_SAFE_INTEGER, 1] }, { delays: [Number.MAX_SAFE_INTEGER, 1] }].map(plain),
      ...[{ limitKeys: ['x', null] }, { limitKeys: [`${other}:k`, null] }, { limitKeys: [`${queue}:`, null] }].map(
        plain,
      ),
      ...[{ limitKeys: [`${queue}:${'x'.repeat(513)}`, null] }, { limitKeys: [`${queue}:k`] }].map(plain),
      ...[{ labels: ['{}'] }, { labels: [null, 'no JSON'] }, { labels: [`{"a":"b"}${separator}`, null] }].map(plain),
      ...badLabels.map((labels) => plain({ labels: [null, JSON.stringify(labels)] })),
      ...badLabels.map((labels) => job({ labels })),
      ...badLabels.map((labels) => named({ labels })),
      ...[null, 1, [], { a: 1 }, { a: 'a[0]' }, { '1': 'a' }, { a: 'a'.repeat(256) }, nine].map(
        (labels) => ['select holdfast.define_queue($1, $2, true)', ['q', definitionJson({ labels })]] as const,
      ),
      ...[{ lane: lane + 1 }, { epoch: uuid() }, { epoch: 'x' }, { epoch: null }, { limitKey: 1 }].map(job),
      ...[{ epoch: uuid() }, { epoch: null }].map(one),
      ...[{ epochs: [uuid()] }, { epochs: null }, { lanes: [lane, lane], known: null }].map(plain),
      ...[{ name: 'a b' }, { name: null }, { name: 1 }, { priority: 10 }, { priority: null }, { id: null }].map(named),
      ...[{ lane: lane + 1 }, { opened: { queue: 1 }, payload: 'no JSON' }, { limitKey: 'x'.repeat(513) }].map(named),
      ...[{ payload: 'no JSON' }, { payload: 1 }, { payload: null }, { headers: '[]' }, { headers: {} }].map(job),
      ...[{ dedupKey: 'k' }, { dedupKey: 'k', dedupScope: 'ever' }, { dedupKey: 'k', dedupScope: 'window' }].map(job),
      ...[{ idempotencyKey: 'k' }, { dedupScope: 'live' }, { maxAttempts: 0 }, { maxAttempts: '5' }].map(job),
      ...[{ runAt: -1 }, { startBefore: 'x' }, { delayMs: 1e18 }, { id: 'x' }, { id: null }].map(job),
      ...['null', '1', '[1]', '[[1]]', '{}', '[{}]'].map(
        (json) => ['select holdfast.enqueue($1, null, null, false)', [json]] as const,
      ),
      ...[
        `select holdfast.open_lanes('{a b}', '{5}', 1, 1)`,
        `select holdfast.open_lanes('{null}', '{10}', 1, 1)`,
        `select holdfast.open_lanes('{mail,mail}', '{5}', 1, 1)`,
        `select holdfast.open_lanes('{mail}', '{5}', 1, 1, gen_random_uuid())`,
        `select holdfast.open_lanes(null, null, 1, 1)`,
        `select holdfast.admit('{x}', '{}', null)`,
        `select holdfast.admit('{null}', '{}', null)`,
        `select holdfast.admit('{99999999999:k}', '{}', null)`,
        `select holdfast.admit(array(select '1:' || n from generate_series(1, 100000) n), '{}', null)`,
      ].map((text) => [text, []] as const),
      ...[
        ...[{ retainDoneMs: -1 }, { retainDeadMs: '1' }, { onDead: 'a b' }, { onDead: 1 }, { attempts: 0 }],
        ...[{ attempts: null }, { priority: 10 }, { leaseMs: 0 }, { timeoutMs: 1.5 }, { backoff: null }, { more: 1 }],
        ...[{ backoff: { baseMs: 1, factor: 0, maxMs: 1, jitter: 0 } }, { backoff: { baseMs: 1 } }],
        ...[{ backoff: { baseMs: 1, factor: 2, maxMs: 1, jitter: '0' } }, { key: 'path' }, { key: { path: 'a[0]' } }],
        ...[{ key: { path: 'a', more: 1 } }, { key: { path: 'a'.repeat(256) } }, { limit: 1 }, { limit: {} }],
        ...[{ limit: { concurrency: 0, rate: null } }, { limit: { concurrency: null, rate: { count: 1 } } }],
        ...[{ keyLimit: { concurrency: 1, rate: 1 } }, { keyLimit: { concurrency: null, rate: rate(0, 5) } }],
        { keyLimit: { concurrency: null, rate: rate(5, 0) } },
      ].map((changed) => ['select holdfast.define_queue($1, $2, true)', ['q', definitionJson(changed)]] as const),
      ...['null', '1', '[]', '{}', '{"attempts": 1}', withPoint('attempts'), withPoint('retainDoneMs')].map(
        (json) => ['select holdfast.define_queue($1, $2, true)', ['q', json]] as const,
      ),
      ...[{ key: { path: null } }, { key: {} }, { key: [] }, { key: { path: 1 } }].map(
        (changed) => ['select holdfast.define_queue($1, $2, true)', ['q', definitionJson(changed)]] as const,
      ),
      ...[{ dedupKey: 'k', dedupScope: null }, { dedupKey: 'k', dedupScope: 1 }, { definitionEpoch: 'x' }].map(job),
      ...['"maxAttempts": 5.0', '"priority": 5.0', '"delayMs": 1.0', '"runAt": 1.0'].map((option) => {
        const json = `[[{"id": "${uuid()}", "name": "mail", "payload": "1", ${option}}]]`
        return ['select holdfast.enqueue($1, null, null, false)', [json]] as const
      }),
      ...[{ priority: 'x' }, { definedAs: 'x' }, { priority: 1.5 }].map((changed) => {
        const json = JSON.stringify([{ id: uuid(), name: 'mail', payload: '1', ...changed }])
        return ['select holdfast.enqueue_in($1, false, null)', [json]] as const
      }),
      ...['null', '1', '[1]', '{}'].map((json) => ['select holdfast.enqueue_in($1, false, null)', [json]] as const),
      ['select holdfast.define_queue($1, $2, true)', [null, definitionJson({})]] as const,
      ['select holdfast.define_queue($1, $2, null)', ['q', definitionJson({})]] as const,
    ]
    for (const isolation of ['read committed', 'repeatable read']) {
      for (const [text, values] of hostile) {
        await producer.query(`begin isolation level ${isolation}`)
        const code = await producer.query(text, [...values]).then(
          () => 'no error',
          (error: pg.DatabaseError) => error.code ?? error.message,
        )
        await producer.query('rollback')
        const shown = `${text} ${JSON.stringify(values).slice(0, 200)} in ${isolation}`
        assert.match(code, isolation === 'read committed' ? /^HF(006|10\d)$/ : /^(HF00[16]|HF10\d|40001)$/, shown)
      }
    }
    assert.deepEqual(await database.rows('select from holdfast.job'), [])
    await assertRecount(database.pool)
  })

  test('that calls functions at random harms nothing: every other job is claimed and every count is right', async (t) => {
    const seed = Number(process.env['HOLDFAST_SEED'] ?? Date.now() % 1_000_000)
    t.diagnostic(`HOLDFAST_SEED=${seed}`)
    await using scene = await setup()
    const { holdfast, producer, database } = scene
    const draw = new Random(seed)
    const guarded = holdfast.queue('guarded')
    const secret = await guarded.enqueueMany([1, 2, 3].map((payload) => ({ payload: { secret: payload } })))
    const functions = (await functionsOf(scene)).filter(({ mayCall }) => mayCall)
    const before = await database.rows(`select * from holdfast.queue where name = 'guarded'`)
    let succeeded = 0
    for (let i = 0; i < 1_500; i++) {
      const { name, types } = draw.pick(functions)
      const values = types.split(',').map((type) => drawn(draw, type))
      const call = `select holdfast.${name}(${types.split(',').map((type, j) => `$${j + 1}::${type}`)})`
      const isolation = draw.pick(['read committed', 'repeatable read', 'serializable'])
      await producer.query(`begin isolation level ${isolation}`)
      const isDone = await producer.query(call, values).then(
        () => true,
        (error: pg.DatabaseError) => {
          assert.ok(!/secret/.test(error.message), error.message)
          assert.ok(
            !/^(XX|0[1-9A])/.test(error.code ?? ''),
            `${call} ${JSON.stringify(values)}: ${error.code} ${error.message}`,
          )
          return false
        },
      )
      await producer.query(isDone && draw.chance(0.9) ? 'commit' : 'rollback')
      if (isDone) succeeded += 1
    }
    assert.ok(succeeded > 100, `${succeeded} calls went through`)
    assert.deepEqual(await database.rows(`select * from holdfast.queue where name = 'guarded'`), before)
    await holdfast.sweep()
    await assertRecount(database.pool)
    const claimed = new Map<string, unknown>()
    for (;;) {
      const leases = await holdfast.claim('*', { max: 1_000 })
      for (const lease of leases) claimed.set(lease.job.id, lease.job.payload)
      for (const lease of leases) await lease.done()
      await holdfast.sweep()
      if (leases.length === 0) break
    }
    assert.deepEqual(
      secret.map(({ id }) => claimed.get(id)),
      [1, 2, 3].map((payload) => ({ secret: payload })),
    )
    await assertRecount(database.pool)
  })
})

const refusal = { code: /^HF10\d$/ }

/** A complete definition, as a client sends it. */
function definitionJson(changed: Record<string, unknown>): string {
  return JSON.stringify({ ...JSON.parse(encodeDefinition(undefinedQueue)), ...changed })
}

function rate(count: number, windowMs: number): unknown {
  return { count, windowMs }
}

function uuid(): string {
  return crypto.randomUUID()
}

interface Scene extends AsyncDisposable {
  readonly database: RoleDatabase
  readonly role: string
  /** A session of the producer. */
  readonly producer: pg.Client
  /** A session of the owner. */
  readonly holdfast: Awaited<ReturnType<typeof open>>
}

/** A schema with a defined queue, and a connected producer. */
async function setup(): Promise<Scene> {
  const database = await roleGround()
  const role = await database.role('producer')
  const owner = new pg.Client({ connectionString: database.url })
  await owner.connect()
  await migrate(owner, new Schema('holdfast'))
  await grantRoles(owner, new Schema('holdfast'), usesByRole({ producer: role }))
  await owner.end()
  const holdfast = await open(database.url)
  await holdfast.queue('guarded', { limit: { concurrency: 50 } }).enqueue('first')
  const [first] = await holdfast.claim(['guarded'])
  await first?.done()
  const producer = new pg.Client({ connectionString: database.urlOf(role) })
  await producer.connect()
  return {
    ...{ database, role, producer, holdfast },
    async [Symbol.asyncDispose]() {
      await producer.end()
      await holdfast.close()
      await database[Symbol.asyncDispose]()
    },
  }
}

interface SchemaFunction extends pg.QueryResultRow {
  readonly name: string
  readonly types: string
  readonly mayCall: boolean
  readonly runsAsOwner: boolean
  readonly config: readonly string[] | null
}

function functionsOf({ database, role }: Scene): Promise<SchemaFunction[]> {
  return database.rows<SchemaFunction>(
    `select p.proname as name, array_to_string(array(select t::regtype::text from unnest(p.proargtypes) t), ',') as types,
            has_function_privilege($1, p.oid, 'execute') as "mayCall", p.prosecdef as "runsAsOwner", p.proconfig as config
       from pg_proc p where p.pronamespace = 'holdfast'::regnamespace order by 1, 2`,
    [role],
  )
}

async function queueOf({ database }: Scene, name: string): Promise<{ no: number }> {
  const [row] = await database.rows<{ no: number }>('select no from holdfast.queue where name = $1', [name])
  return row as { no: number }
}

async function limitsOf({ database }: Scene, name: string): Promise<unknown> {
  const [row] = await database.rows(
    'select is_named, max_running, key_max_running from holdfast.queue where name = $1',
    [name],
  )
  return row
}

const numbers = [null, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100, -1, 32_767, 2_147_483_647, 1e12, Number.MAX_SAFE_INTEGER]
const texts = [
  ...[
    null,
    '',
    'mail',
    'guarded',
    'q',
    '1',
    '{"a": 1}',
    '{"a": "b"}',
    '"text"',
    '1:k',
    '2:k',
    'x:k',
    ':',
    '99999999999:k',
  ],
  ...['a b', 'x\u001ey', '1\u001e2', "'", 'null', 'x'.repeat(600)],
]

/** As text. The server refuses a value that is not of the type before the function is called. */
function drawn(draw: Random, type: string): string | null {
  if (type.endsWith('[]')) return drawnArray(draw, type.slice(0, -2))
  switch (type) {
    case 'uuid':
      return draw.chance(0.1) ? null : uuid()
    case 'smallint':
      return draw.chance(0.6) ? '5' : asText(draw.pick(numbers.filter((n) => n === null || n <= 32_767)))
    case 'integer':
      return asText(draw.pick(numbers.filter((n) => n === null || n <= 2_147_483_647)))
    case 'bigint':
      return draw.chance(0.4) ? null : asText(draw.pick(numbers))
    case 'boolean':
      return asText(draw.pick([null, true, false]))
    case 'text':
      return draw.pick(texts)
    case 'jsonb':
      return draw.chance(0.1) ? null : JSON.stringify(drawnJson(draw))
  }
  throw new Error(`Nothing is drawn for ${type} yet.`)
}

function drawnArray(draw: Random, of: string): string | null {
  if (draw.chance(0.3)) return null
  const length = draw.pick([0, 1, 1, 1, 2, 3])
  const elements = Array.from({ length }, () => drawn(draw, of)).map((each) =>
    each === null ? 'null' : JSON.stringify(each),
  )
  if (draw.chance(0.05)) return `{{${elements}}}`
  if (length === 1 && draw.chance(0.05)) return `[0:0]={${elements}}`
  return `{${elements}}`
}

function drawnJson(draw: Random): unknown {
  const job = Object.fromEntries(
    Object.entries({
      ...{ id: uuid(), queue: draw.pick(numbers), lane: draw.pick(numbers), payload: draw.pick(texts), maxAttempts: 5 },
      ...{
        unknown: draw.pick(texts),
        dedupKey: draw.pick(texts),
        dedupScope: draw.pick(['live', 'waiting', 'window', 'x']),
      },
      ...{
        windowMs: draw.pick(numbers),
        headers: draw.pick(texts),
        runAt: draw.pick(numbers),
        replace: true,
        given: true,
      },
      ...{ idempotencyKey: draw.pick(texts), hash: draw.pick(texts), startBefore: draw.pick(numbers) },
      ...{
        name: draw.pick(texts),
        priority: draw.pick(numbers),
        version: draw.pick(numbers),
        limitKey: draw.pick(texts),
      },
      ...{ defaultKey: true, keyUnknown: true, opened: { queue: draw.pick(numbers), lane: draw.pick(numbers) } },
    }).filter(([name]) => draw.chance(['id', 'queue', 'lane', 'payload', 'maxAttempts'].includes(name) ? 0.97 : 0.2)),
  )
  const options = { delay_ms: draw.pick(numbers), limit_key: draw.pick(texts), priority: draw.pick(numbers) }
  const { lane: _, ...unplaced } = job
  const named = { ...unplaced, name: draw.pick(['mail', 'guarded', 'q']), payload: '1' }
  const definition = {
    ...(JSON.parse(definitionJson({})) as object),
    ...(draw.chance(0.5) && { attempts: draw.pick(numbers), onDead: draw.pick(texts), key: draw.pick(texts) }),
    ...(draw.chance(0.5) && { key: 'code', limit: { concurrency: draw.pick(numbers), rate: null } }),
  }
  return draw.pick<unknown>([
    [named],
    [[named]],
    definition,
    definition,
    [[job]],
    [[job], [job]],
    [[job]],
    [[]],
    [],
    [job],
    job,
    options,
    {},
    { limit_key: 'k' },
    'text',
    null,
  ])
}

function asText(value: unknown): string | null {
  return value === null ? null : String(value)
}
