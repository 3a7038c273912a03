// The command as a person or a script uses it: real processes on a real file.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { stripVTControlCharacters } from 'node:util'
import { type AnyDefinition, defineQueue, open } from '../../src/index.ts'
import { manifest, root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'

const bin = join(root, 'bin/holdfast.js')
const unknownId = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'

test('help lists every command, and each command has its own help', async () => {
  await using world = await setup()
  const { code, stdout } = await world.holdfast('--help')
  assert.equal(code, 0)
  const names = [
    ...[
      'queues',
      'jobs',
      'job',
      'explain',
      'enqueue',
      'pause',
      'resume',
      'cancel',
      'requeue',
      'wake',
      'reschedule',
      'reprioritise',
      'change',
    ],
    ...[
      'delete',
      'delete-queue',
      'flow',
      'batch',
      'inbox',
      'workers',
      'release-worker',
      'watch',
      'sweep',
      'doctor',
      'schedules',
      'schedule',
      'gate',
      'kv',
      'migrate',
    ],
  ]
  const check = async (name: string) => {
    assert.match(stdout, new RegExp(`^ {2}${name} `, 'm'))
    const help = await world.holdfast(name, '--help')
    assert.equal(help.code, 0)
    assert.match(help.stdout, new RegExp(`^Usage: holdfast ${name} `, 'm'))
  }
  await Promise.all(names.map(check))
  assert.deepEqual(await world.files(), [])
})

test('the version is that of the package', async () => {
  await using world = await setup()
  assert.equal((await world.holdfast('--version')).stdout, `${manifest.version}\n`)
})

test('without a command it shows the help, and the exit code shows that nothing was done', async () => {
  await using world = await setup()
  const { code, stdout, stderr } = await world.holdfast()
  assert.equal(code, 2)
  assert.equal(stdout, '')
  assert.match(stderr, /^Usage: holdfast <command>/m)
})

test('wrong arguments are answered with one sentence and exit code 2, before any store is opened', async () => {
  await using world = await setup()
  const cases: [string[], RegExp][] = [
    [['quueues'], /^holdfast: There is no command "quueues"; holdfast --help lists them\.\n$/],
    [['jobs', '--quue', 'x'], /^holdfast: Unknown option '--quue'; holdfast jobs --help says more\.\n$/],
    [['jobs', '--limit', 'many'], /^holdfast: --limit must be a number; got "many"\.\n$/],
    [['job'], /^holdfast: Write: holdfast job <id>\n$/],
    [['cancel', 'one', 'two'], /^holdfast: Write: holdfast cancel \[id\]\n$/],
    [['enqueue', 'welcome', '{userId: 1}'], /^holdfast: The payload is not JSON .*quote it for your shell.*\n$/],
    [
      ['enqueue', 'welcome', '1', '--delay', 'soon'],
      /^holdfast: --delay must be a duration such as .*; got "soon"\.\n$/,
    ],
    [
      ['enqueue', 'welcome', '1', '--delay', '1m', '--run-at', '2030-01-31T09:00:00Z'],
      /^holdfast: Give either --delay or --run-at, not both\.\n$/,
    ],
    [['enqueue', 'welcome', '1', '--run-at', 'soon'], /^holdfast: --run-at must be a time such as .*\n$/],
    [['enqueue', 'welcome', '1', '--replace'], /^holdfast: --replace says how --dedup works.*\n$/],
    [
      ['enqueue', 'welcome', '1', '--dedup', 'k', '--replace', '--idempotency-key', 'i'],
      /^holdfast: --idempotency-key cannot be combined with --replace: .*\n$/,
    ],
    [['enqueue', 'welcome', '1', '--label', 'x'], /^holdfast: --label is name=value; got "x"\.\n$/],
    [['enqueue', 'welcome', '1', '--header', 'x'], /^holdfast: --header is name=value; got "x"\.\n$/],
    ...['cancel', 'requeue', 'delete'].map((name): [string[], RegExp] => [
      [name],
      /^holdfast: Give a job id, or say which jobs: --queue.*\n$/,
    ]),
    [['reschedule', '2030-01-31'], /^holdfast: Give a job id, or say which jobs.*\n$/],
    [['delete', unknownId, '--dry-run'], /^holdfast: Give either a job id or a filter.*\n$/],
    [['requeue', unknownId, '--queue', 'x'], /^holdfast: Give either a job id or a filter.*\n$/],
    [['wake', unknownId, '{x: 1}'], /^holdfast: The data is not JSON .*\n$/],
    [['reschedule', unknownId, 'soon'], /^holdfast: <time> must be a time such as .*; got "soon"\.\n$/],
    [
      ['change', unknownId, '--limit-key', 'a', '--no-limit-key'],
      /^holdfast: Give either --limit-key or --no-limit-key\.\n$/,
    ],
    [['reprioritise', unknownId, '10'], /^holdfast: A priority must be 0 to 9; got "10"\.\n$/],
    [['schedule', 'kick', 'x'], /^holdfast: schedule takes pause, resume, run or remove; got "kick"\.\n$/],
    [['schedule', 'pause'], /^holdfast: Write: holdfast schedule pause <name>\n$/],
    [['gate', 'kick'], /^holdfast: gate takes list, open or close; got "kick"\.\n$/],
    [['gate', 'open'], /^holdfast: Write: holdfast gate open <name>\n$/],
    [['gate', 'open', 'x', '--reason', 'y'], /^holdfast: --reason is only for gate close\.\n$/],
    [['batch', 'kick', 'x'], /^holdfast: batch takes list, show, submit, .*; got "kick"\.\n$/],
    [['batch', 'pause'], /^holdfast: Write: holdfast batch pause <batch>\n$/],
    [['batch', 'submit'], /^holdfast: Name the batch, as in --name articles\.\n$/],
    [['inbox', 'accept', 'x'], /^holdfast: Write: holdfast inbox accept <inbox> <id> .*\n$/],
    [['explain'], /^holdfast: Write: holdfast explain <id>\n$/],
    [['kv', 'steal', 'x'], /^holdfast: kv takes get, put, delete or scan; got "steal"\.\n$/],
    [['kv', 'put', 'x'], /^holdfast: Write: holdfast kv put <key> <json>\n$/],
  ]
  const check = async ([args, sentence]: [string[], RegExp]) => {
    const { code, stdout, stderr } = await world.holdfast(...args)
    assert.match(stderr, sentence, args.join(' '))
    assert.deepEqual({ code, stdout }, { code: 2, stdout: '' }, args.join(' '))
  }
  await Promise.all(cases.map(check))
  assert.deepEqual(await world.files(), [])
})

test('a batch is submitted as JSON lines, shown, paused, resumed and read as JSON lines again', async () => {
  await using world = await setup()
  const lines = [1, 2, 3].map((n) => JSON.stringify({ queue: 'mail', payload: n })).join('\n')
  const submit = ['batch', 'submit', '--name', 'letters.jsonl', '--key', 'march']
  const submitted = await world.holdfastWith(lines, ...submit, '--concurrency', '2')
  assert.equal(submitted.code, 0, submitted.stderr)
  assert.match(submitted.stdout, /^letters\.jsonl\n.* 0 % {2}0 of 3 {2}queued\n/)
  const again = JSON.parse((await world.holdfastWith(lines, ...submit, '--json')).stdout)
  assert.equal(again.total, 3, 'the same submission is stored once')
  assert.match(
    (await world.holdfast('batch', 'pause', 'march', '--by', 'ada')).stdout,
    /^Paused batch letters\.jsonl\./,
  )
  assert.match((await world.holdfast('batch', 'show', again.id)).stdout, /paused .* by ada/)
  assert.equal((await world.json('batch', 'resume', 'march')).state, 'queued')
  assert.match((await world.holdfast('batch', 'list')).stdout, /queued +3 +0 % .* letters\.jsonl/)
  {
    await using holdfast = await open(world.url)
    const [lease] = await holdfast.claim(['mail'])
    await lease?.done({ sent: true }, undefined, { outcome: 'sent' })
  }
  await world.holdfast('batch', 'cancel', 'march', '--reason', 'enough', '--by', 'ada')
  const { stdout } = await world.holdfast('batch', 'results', 'march')
  const results = stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual(
    results.map(({ payload, state, outcome }) => [payload, state, outcome]),
    [
      [1, 'done', 'sent'],
      [2, 'cancelled', null],
      [3, 'cancelled', null],
    ],
  )
  assert.match(
    (await world.holdfast('batch', 'show', 'march', '--follow')).stdout,
    /cancelled.*cancelled by +ada.*reason .*enough/s,
  )
  assert.match((await world.holdfast('batch', 'delete', 'march')).stdout, /^Deleted batch /)
  const gone = await world.holdfast('batch', 'show', 'march')
  assert.equal(gone.code, 1)
  assert.match(gone.stderr, /There is no batch with the id or key march.*BATCH_NOT_FOUND/)
})

test('explain says in one sentence why a job is in its state', async () => {
  await using world = await setup()
  const { id } = await world.json('enqueue', 'mail', '1')
  assert.match(
    (await world.holdfast('explain', id)).stdout,
    /^No worker of queue mail has reported within the last minute\./,
  )
  await world.holdfast('pause', 'mail', '--by', 'ada')
  assert.match((await world.holdfast('explain', id)).stdout, /^Queue mail has been paused for .* \(paused by ada\)\./)
  assert.equal((await world.json('explain', id)).why, 'queue-paused')
  assert.match((await world.holdfast('workers')).stdout, /^No worker has reported within the last minute/)
  assert.match((await world.holdfast('inbox', 'list', 'extracted')).stdout, /^Inbox extracted is empty/)
  assert.equal((await world.holdfast('inbox', 'list')).stdout, 'No inbox has offers.\n')
})

test('a pause with a time says until when, and explain and queues show it', async () => {
  await using world = await setup()
  const { id } = await world.json('enqueue', 'mail', '1')
  const until = '2093-01-31T09:00:00.000Z'
  assert.equal(
    (await world.holdfast('pause', 'mail', '--until', until)).stdout,
    `Paused mail until ${until}: 1 waiting, 0 running.\n`,
  )
  assert.equal((await world.json('queues'))[0].pausedUntil, until)
  assert.match((await world.holdfast('explain', id)).stdout, /^Queue mail has been paused for .*, until 2093-01-31/)
  const { pausedUntil } = await world.json('pause', 'mail', '--for', '45m')
  assert.ok(new Date(pausedUntil).getTime() > Date.now())
  assert.match((await world.holdfast('queues')).stdout, /mail \(paused, 4[45] min left\)/)
  assert.equal((await world.json('resume', 'mail')).pausedUntil, null)
  const wrong = await world.holdfast('pause', 'mail', '--for', 'soon')
  assert.equal(wrong.code, 2)
  assert.match(wrong.stderr, /--for must be a duration/)
})

test('pause --all and resume --all name the queues that changed', async () => {
  await using world = await setup()
  for (const queue of ['mail', 'post']) await world.holdfast('enqueue', queue, '1')
  assert.equal((await world.holdfast('pause', '--all', '--by', 'ada')).stdout, 'Paused 2 queues: mail, post.\n')
  assert.equal((await world.holdfast('pause', '--all')).stdout, 'Paused 0 queues.\n')
  assert.deepEqual(await world.json('resume', '--all'), { queues: ['mail', 'post'] })
  for (const wrong of [['pause'], ['pause', 'mail', '--all'], ['resume'], ['pause', '--all', '--create']]) {
    const { code, stderr } = await world.holdfast(...wrong)
    assert.deepEqual([code, /^holdfast: (Write: holdfast|--create is for one)/.test(stderr)], [2, true], stderr)
  }
})

test('release-worker counts in a dry run, then ends the leases, and the job shows by which operator', async () => {
  await using world = await setup()
  const { id } = await world.json('enqueue', 'mail', '1')
  {
    await using holdfast = await open(world.url)
    await holdfast.claim(['mail'], { worker: 'mailer-3', lease: '1h' })
  }
  assert.equal(
    (await world.holdfast('release-worker', 'mailer-3', '--dry-run')).stdout,
    'Worker mailer-3 holds 1 job.\n',
  )
  assert.equal(
    (await world.holdfast('release-worker', 'mailer-3', '--by', 'ada')).stdout,
    'Ended 1 lease of worker mailer-3: 1 job waits again.\n',
  )
  assert.match((await world.holdfast('job', id)).stdout, /The lease of worker mailer-3 was ended by ada before/)
  {
    await using holdfast = await open(world.url)
    await holdfast.queue('mail').enqueueMany([{ payload: 2, attempts: 1 }, { payload: 3 }])
    const leases = await holdfast.claim(['mail'], { max: 3, worker: 'mailer-4', lease: '1h' })
    const asked = leases.find(({ job }) => job.payload === 3)
    await holdfast.cancel(asked?.job.id ?? '')
  }
  const released = await world.holdfast('release-worker', 'mailer-4')
  const what = '1 job waits again, 1 is dead, 1 is cancelled'
  assert.deepEqual(released, { code: 0, stdout: `Ended 3 leases of worker mailer-4: ${what}.\n`, stderr: '' })
  assert.deepEqual(await world.json('release-worker', 'mailer-3'), {
    worker: 'mailer-3',
    released: 0,
    left: 0,
    ...{ waiting: 0, dead: 0, cancelled: 0 },
    dryRun: false,
  })
})

test('delete-queue says what it would delete, refuses a queue with jobs, and deletes them with --with-jobs', async () => {
  await using world = await setup()
  await world.holdfast('enqueue', 'mail', '1', '--dedup', 'k')
  const dry = await world.holdfast('delete-queue', 'mail', '--with-jobs', '--dry-run')
  assert.equal(dry.stdout, 'Would delete queue mail with 1 job and 1 key.\n')
  const dryRefused = await world.holdfast('delete-queue', 'mail', '--dry-run')
  assert.match(dryRefused.stdout, /^Queue mail has .* --with-jobs/)
  assert.equal(dryRefused.code, 1)
  const refused = await world.holdfast('delete-queue', 'mail')
  assert.deepEqual([refused.code, /Queue mail has 1 job, 0 of them running/.test(refused.stderr)], [1, true])
  const deleted = await world.holdfast('delete-queue', 'mail', '--with-jobs')
  assert.equal(deleted.stdout, 'Deleted queue mail with 1 job and 1 key.\n')
  assert.equal((await world.holdfast('queues')).stdout, 'There are no queues yet.\n')
  assert.equal((await world.holdfast('delete-queue', 'mail')).code, 1)
})

test('without a store the error says how to name one', async () => {
  await using world = await setup({ HOLDFAST_STORE: '' })
  const { code, stderr } = await world.holdfast('queues')
  assert.equal(
    stderr,
    'holdfast: Name the store: --store sqlite:jobs.db, --store postgres://…, or set HOLDFAST_STORE.\n',
  )
  assert.equal(code, 2)
})

test('the store may be named by option, which wins over the environment', async () => {
  await using world = await setup({ HOLDFAST_STORE: 'sqlite:other.db' })
  await world.holdfast('--store', 'sqlite:named.db', 'enqueue', 'welcome', '1')
  assert.ok((await world.files()).includes('named.db'))
  assert.ok(!(await world.files()).includes('other.db'))
})

test('only enqueue and kv put create a database that does not exist', async () => {
  await using world = await setup()
  const looking = [
    ...[['queues'], ['jobs'], ['job', unknownId], ['pause', 'q'], ['resume', 'q'], ['cancel', unknownId]],
    ...[['requeue', unknownId], ['sweep'], ['kv', 'get', 'k'], ['kv', 'delete', 'k'], ['kv', 'scan']],
    ...[
      ['gate', 'list'],
      ['gate', 'close', 'g'],
      ['gate', 'open', 'g'],
    ],
  ]
  const check = async (args: string[]) => {
    const { code, stderr } = await world.holdfast(...args)
    assert.match(stderr, /^holdfast: There is no database at .*jobs\.db; check the path/, args.join(' '))
    assert.equal(code, 1)
  }
  await Promise.all(looking.map(check))
  assert.deepEqual(await world.files(), [])

  const made = await world.holdfast('kv', 'put', 'k', '1')
  assert.match(made.stderr, /^holdfast: creating a new database at .*jobs\.db\n$/)
  assert.equal(made.code, 0)
})

test('errors of the library are printed with their code, as text and as JSON', async () => {
  await using world = await setup()
  await world.holdfast('enqueue', 'welcome', '1')
  const plain = await world.holdfast('job', unknownId)
  assert.match(plain.stderr, /^holdfast: There is no job .*\(JOB_NOT_FOUND\)\n$/)
  assert.equal(plain.code, 1)

  const { code, stdout, stderr } = await world.holdfast('jobs', '--state', 'gone', '--json')
  const { error } = JSON.parse(stderr)
  assert.deepEqual([code, stdout, error.code, error.facts.option], [2, '', 'INVALID_OPTION', 'state'])
})

test('a value that the library refuses has exit code 2 and names the flag; work that fails has exit code 1', async () => {
  await using world = await setup()
  await world.holdfast('enqueue', 'welcome', '1')
  const typed: [string[], RegExp][] = [
    [['jobs', '--limit', '0'], /^holdfast: --limit must be .* \(INVALID_OPTION\)\n$/],
    [['jobs', '--state', 'deed'], /^holdfast: --state must be .* \(INVALID_OPTION\)\n$/],
    [['jobs', '--after', 'x'], /^holdfast: --after .* \(INVALID_OPTION\)\n$/],
    [['delete', '--queue', 'welcome', '--state', 'deed'], /^holdfast: --state must be .* \(INVALID_OPTION\)\n$/],
    [
      ['enqueue', 'welcome', '1', '--priority', '11'],
      /^holdfast: --priority must be a whole number from 0 to 9; got 11\. /,
    ],
    [['enqueue', 'wel come', '1'], /\(INVALID_NAME\)\n$/],
    [['job', 'x'], /^holdfast: A job id is a UUID; got "x"\. \(INVALID_ID\)\n$/],
    [['queues', '--store', 'mysql://x'], /^holdfast: The store must be a URL such as .*; got "mysql:\/\/x"\. /],
    [['kv', 'put', 'k', '1', '--ttl', '0'], /^holdfast: .*\(INVALID_OPTION\)\n$/],
  ]
  const check = async ([args, sentence]: [string[], RegExp]) => {
    const { code, stdout, stderr } = await world.holdfast(...args)
    assert.match(stderr, sentence, args.join(' '))
    assert.deepEqual({ code, stdout }, { code: 2, stdout: '' }, args.join(' '))
  }
  await Promise.all(typed.map(check))
  const item = await world.holdfastWith('{"queue":"welcome","priority":11}', 'batch', 'submit', '--name', 'b')
  assert.match(item.stderr, /^holdfast: Item 0: priority must be/m)
  assert.equal(item.code, 1)
})

test('enqueue accepts every option, and prints created or duplicate', async () => {
  await using world = await setup()
  const runAt = '2040-01-31T09:00:00.000Z'
  const created = await world.json(
    ...['enqueue', 'welcome', '{"userId":"u1"}', '--run-at', runAt, '--start-before', '2041-01-01T00:00:00Z'],
    ...['--priority', '2', '--attempts', '7', '--timeout', '90s', '--id', unknownId],
    ...['--dedup', 'u1', '--dedup-scope', '1h', '--idempotency-key', 'i1', '--header', 'trace=a=b', '--header', 'x=y'],
    ...['--label', 'customer=c=1', '--label', 'region=eu'],
  )
  assert.deepEqual(created, { id: unknownId, status: 'created' })
  const job = await world.json('job', unknownId)
  const shown = [
    job.payload,
    job.state,
    job.runAt,
    job.priority,
    job.maxAttempts,
    job.timeoutMs,
    job.dedupKey,
    job.headers,
  ]
  assert.deepEqual(shown, [...[{ userId: 'u1' }, 'scheduled', runAt, 2, 7, 90_000, 'u1'], { trace: 'a=b', x: 'y' }])

  assert.deepEqual(job.labels, { customer: 'c=1', region: 'eu' })
  assert.match((await world.holdfast('job', unknownId)).stdout, /^labels +customer=c=1, region=eu$/m)

  const again = await world.holdfast('enqueue', 'welcome', '{"userId":"u2"}', '--dedup', 'u1', '--replace')
  assert.match(again.stdout, new RegExp(`^replaced ${unknownId}`))
})

test('enqueue uses the stored definition, and accepts a limit key if it cannot derive one', async () => {
  await using world = await setup()
  await world.define(defineQueue('byPath', { attempts: 2, priority: 1, limit: { key: 'user', concurrency: 1 } }))
  await world.define(defineQueue('byCode', { limit: { key: () => 'u1', concurrency: 1 } }))
  const enqueued = async (...args: string[]) => world.json('job', (await world.json('enqueue', ...args)).id)
  const { limitKey, maxAttempts, priority } = await enqueued('byPath', '{"user":"u1"}')
  assert.deepEqual([limitKey, maxAttempts, priority], ['u1', 2, 1])
  assert.equal((await enqueued('byCode', '{}', '--limit-key', 'u2')).limitKey, 'u2')
  assert.equal((await enqueued('byCode', '{}', '--no-limit-key')).limitKey, null)
  for (const queue of ['byPath', 'byCode']) {
    const { code, stderr } = await world.holdfast('enqueue', queue, '{}')
    assert.equal(code, 1)
    assert.match(stderr, /[Pp]ass --limit-key, or --no-limit-key .*LIMIT_KEY_REQUIRED/)
  }
  const both = await world.holdfast('enqueue', 'byCode', '{}', '--limit-key', 'u2', '--no-limit-key')
  assert.equal(both.code, 2)
})

test('limit overrides the limits of a queue, shows them, and clears the override', async () => {
  await using world = await setup()
  await world.define(defineQueue('crawl', { limit: [{ concurrency: 5 }, { key: 'host', concurrency: 2 }] }))
  assert.match((await world.holdfast('limit', 'crawl')).stdout, /^crawl: 5 at once; 2 at once of each key\.$/m)
  const set = await world.json('limit', 'crawl', '--concurrency', '1', '--rate', '10/1m', '--key-none')
  assert.deepEqual(set.limit, { concurrency: 1, rate: { count: 10, windowMs: 60_000 } })
  assert.deepEqual([set.keyLimit, set.limitOverride.keyLimit], [null, { concurrency: null, rate: null }])
  assert.match(
    (await world.holdfast('queues')).stdout,
    /LIMITS\n.*1 at once \(override\), 10 in 1 ?m.* \(override\); no limit of each key \(override\)/,
  )
  const only = await world.json('limit', 'crawl', '--concurrency', 'none')
  assert.deepEqual(only.limit, { concurrency: null, rate: { count: 10, windowMs: 60_000 } }, 'the rate stays')
  const typo = await world.holdfast('limit', 'crwal', '--concurrency', '1')
  assert.equal(typo.code, 1)
  assert.match(typo.stderr, /There is no queue crwal/)
  const cleared = await world.json('limit', 'crawl', '--clear')
  assert.deepEqual([cleared.limit.concurrency, cleared.keyLimit.concurrency, cleared.limitOverride], [5, 2, null])
  assert.equal((await world.holdfast('limit', 'crawl', '--clear', '--concurrency', '1')).code, 2)
  assert.equal((await world.holdfast('limit', 'crawl', '--rate', 'often')).code, 2)
  assert.equal((await world.holdfast('limit', 'nothing')).code, 1)
})

test('enqueue reads a payload from standard input', async () => {
  await using world = await setup()
  const { stdout } = await world.holdfastWith('{"from":"stdin"}', 'enqueue', 'welcome', '-', '--json')
  assert.deepEqual((await world.json('job', JSON.parse(stdout).id)).payload, { from: 'stdin' })
})

test('queues shows the counts of every queue in columns that line up', async () => {
  await using world = await setup()
  await world.history()
  const { stdout } = await world.holdfast('queues')
  assert.deepEqual(
    stdout
      .split('\n')
      .slice(0, 3)
      .map((line) => line.trim().split(/ {2,}/)),
    [
      ['QUEUE', 'READY', 'RUNNING', 'SCHEDULED', 'DONE', 'DEAD', 'CANCELLED', 'OLDEST WAITING'],
      ['mail', '·', '·', '1', '1', '2', '·', '·'],
      [''],
    ],
  )
  const [head = '', row = ''] = stdout.split('\n')
  assert.equal(row.length, head.length)
  assert.deepEqual((await world.json('queues'))[0].dead, 2)
})

test('jobs filters by queue and state, and pages', async () => {
  await using world = await setup()
  const { deadIds } = await world.history()
  const first = await world.json('jobs', '--queue', 'mail', '--state', 'dead', '--limit', '1')
  const second = await world.json('jobs', '--queue', 'mail', '--state', 'dead', '--limit', '1', '--after', first.next)
  assert.deepEqual([...first.jobs, ...second.jobs].map(({ id }) => id).sort(), deadIds.toSorted())
  assert.match((await world.holdfast('jobs', '--limit', '1')).stdout, /There are more: add --after \S+\n$/)
  assert.equal((await world.holdfast('jobs', '--queue', 'unused')).stdout, 'No jobs match.\n')
})

test('jobs has a flag for every condition, and counts', async () => {
  await using world = await setup()
  const { deadIds } = await world.history()
  const idsOf = async (...flags: string[]) =>
    (await world.json('jobs', ...flags)).jobs.map(({ id }: { id: string }) => id).sort()
  const dead = deadIds.toSorted()
  const [id = ''] = deadIds
  const batch = await (async () => {
    await using holdfast = await open(world.url)
    const key = { dedup: { key: 'd1' }, idempotencyKey: 'i1', labels: { customer: 'c1', region: 'eu' } }
    await holdfast
      .queue('flags', { limit: { concurrency: 9, key: 'customer.id' } })
      .enqueue({ customer: { id: 'c1' } }, key)
    return (await holdfast.batch({ name: 'b' }, [{ queue: 'items', payload: { n: 3 } }])).id
  })()
  const all = [
    '--queue',
    'mail',
    '--state',
    'dead',
    '--state',
    'held',
    '--error',
    'smtp',
    '--worker',
    'w1',
    '--attempts',
    '2..2',
  ]
  const since = ['enqueued', 'started', 'ended'].flatMap((name) => [
    `--${name}-since`,
    '2000-01-01',
    `--${name}-before`,
    '2200-01-01',
  ])
  assert.deepEqual(await idsOf(...all, ...since), dead)
  assert.deepEqual(await idsOf('--id', id, '--attempts', '2'), [id])
  assert.deepEqual(await idsOf('--id', id, '--attempts', '3..'), [])
  for (const flag of [
    ['--limit-key', 'c1'],
    ['--dedup-key', 'd1'],
    ['--idempotency-key', 'i1'],
    ['--payload', 'customer.id=c1'],
    ['--label', 'customer=c1', '--label', 'region=eu'],
  ])
    assert.equal((await idsOf('--queue', 'flags', ...flag)).length, 1, flag.join(' '))
  assert.equal((await idsOf('--batch', batch, '--payload', 'n=3')).length, 1)
  assert.equal((await idsOf('--batch', batch, '--payload', 'n="3"')).length, 0)
  assert.equal((await world.holdfast('jobs', ...all, '--count')).stdout, `${dead.length}\n`)
  assert.deepEqual(await world.json('jobs', '--state', 'dead', '--count'), {
    count: dead.length,
    looked: 0,
    next: null,
  })
  for (const wrong of [
    ['--attempts', 'x'],
    ['--attempts', '..'],
    ['--payload', 'n'],
    ['--label', 'customer'],
    ['--payload', '=1'],
    ['--ended-since', 'x'],
    ['--ended-since', 'yesterday 5'],
    ['--ended-since', '5'],
    ['--started-before', '2030-02-30'],
    ['--enqueued-since', '-1h'],
  ])
    assert.equal((await world.holdfast('jobs', ...wrong)).code, 2, wrong.join(' '))
  const { stderr } = await world.holdfast('jobs', '--ended-since', 'yesterday 5')
  assert.match(
    stderr,
    /^holdfast: --ended-since must be a time such as .*, a date such as .*, or a duration such as 1h .* \(so long ago\); got "yesterday 5"\.$/m,
  )
})

test('a duration is so long ago in a condition, and so long from now in a reschedule', async () => {
  await using world = await setup()
  const { id } = await world.json('enqueue', 'mail', '1', '--run-at', '7d')
  const ids = async (...flags: string[]) =>
    (await world.json('jobs', ...flags)).jobs.map((job: { id: string }) => job.id)
  assert.deepEqual(await ids('--enqueued-since', '1h'), [id])
  assert.deepEqual(await ids('--enqueued-before', '1h'), [])
  const early = Date.now() + 3_600_000
  await world.json('reschedule', id, '1h')
  const { runAt } = await world.json('job', id)
  assert.ok(Date.parse(runAt) >= early && Date.parse(runAt) <= Date.now() + 3_600_000)
  for (const time of ['soon', '5', '2030-02-30'])
    assert.equal((await world.holdfast('reschedule', id, time)).code, 2, time)
})

test('job shows everything, with the history of attempts', async () => {
  await using world = await setup()
  const { deadIds } = await world.history()
  const { stdout } = await world.holdfast('job', deadIds[0] ?? '')
  assert.match(stdout, /^state +dead$/m)
  assert.match(stdout, /^attempts +2 of 2$/m)
  assert.match(stdout, /^error +Error: no answer from smtp$/m)
  assert.match(stdout, /^ +Caused by Error: connect to smtp \(ECONNREFUSED\)$/m)
  const said = 'no answer from smtp \\(caused by connect to smtp \\[ECONNREFUSED\\]\\)'
  for (const n of [1, 2]) assert.match(stdout, new RegExp(`^ +${n} {2}failed {2}w1 .*${said}$`, 'm'))
})

test('control characters of payloads and errors are not printed to a terminal', async () => {
  await using world = await setup()
  const evil = '\u001b]0;owned\u0007\u009b31m'
  await using holdfast = await open(world.url)
  const { id } = await holdfast.queue('mail').enqueue({ evil }, { attempts: 1 })
  const [lease] = await holdfast.claim(['mail'])
  await lease?.retry(new Error(evil))
  for (const args of [['jobs'], ['job', id]]) {
    const { stdout } = await world.holdfast(...args)
    assert.doesNotMatch(stdout.replaceAll('\n', ''), /\p{Cc}/u, args.join(' '))
  }
})

test('pause and resume print the counts of the queue', async () => {
  await using world = await setup()
  await world.history()
  assert.equal((await world.holdfast('pause', 'mail')).stdout, 'Paused mail: 1 waiting, 0 running.\n')
  assert.match((await world.holdfast('queues')).stdout, /^mail \(paused\) /m)
  assert.deepEqual(await world.json('resume', 'mail'), { queue: 'mail', paused: false, pausedUntil: null })
})

test('cancel ends a waiting job, and requests the end of a running one', async () => {
  await using world = await setup()
  await using holdfast = await open(world.url)
  const { id: waiting } = await holdfast.queue('later').enqueue(1, { delay: '1h' })
  assert.equal((await world.holdfast('cancel', waiting)).stdout, `Cancelled ${waiting}.\n`)
  assert.match((await world.holdfast('cancel', waiting)).stderr, /INVALID_STATE/)

  const { id: running } = await holdfast.queue('now').enqueue(1)
  await holdfast.claim(['now'])
  assert.deepEqual(await world.json('cancel', running), { id: running, status: 'requested' })
})

test('wake, reschedule, reprioritise and delete change waiting jobs, one or all that match', async () => {
  await using world = await setup()
  await using holdfast = await open(world.url)
  const { id } = await holdfast.queue('later').enqueue(1, { delay: '1h' })
  const time = '2040-01-31T09:00:00.000Z'
  assert.equal(
    (await world.holdfast('reschedule', id, time)).stdout,
    `Rescheduled ${id}: it is scheduled for ${time}.\n`,
  )
  const before = Date.now() // no earlier than the clock of the store
  const { runAt, state } = await world.json('reschedule', id, '--delay', '2h')
  assert.equal(state, 'scheduled')
  assert.ok(Date.parse(runAt) >= before + 7_200_000 && Date.parse(runAt) <= Date.now() + 7_200_000, runAt)
  assert.match((await world.holdfast('reschedule', id, time, '--delay', '1h')).stderr, /either a time or --delay/)
  assert.match((await world.holdfast('reschedule', id)).stderr, /Give a job id, or say which jobs/)
  assert.match((await world.holdfast('delete', id, '--by', 'ada')).stderr, /--by/)
  assert.deepEqual(await world.json('reprioritise', id, '0'), { id, state: 'scheduled', priority: 0 })
  assert.equal((await world.holdfast('wake', id, '{"ok":true}')).stdout, `Woke ${id}: it is ready.\n`)
  const [lease] = await holdfast.claim(['later'])
  assert.deepEqual([lease?.job.priority, lease?.job.wake], [0, { ok: true }])
  assert.match((await world.holdfast('delete', id)).stderr, /INVALID_STATE/)
  await lease?.done()
  assert.equal((await world.holdfast('delete', id)).stdout, `Deleted ${id}.\n`)

  await holdfast.queue('later').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3, delay: '1h' }])
  const of = (...args: string[]) => [...args, '--queue', 'later']
  assert.equal(
    (await world.holdfast(...of('delete'), '--state', 'scheduled', '--dry-run')).stdout,
    'Would delete 1 job.\n',
  )
  assert.equal((await world.holdfast(...of('delete'), '--state', 'scheduled')).stdout, 'Deleted 1 job.\n')
  assert.equal((await world.holdfast(...of('reschedule', time))).stdout, 'Rescheduled 2 jobs.\n')
  assert.equal((await world.holdfast(...of('reschedule', '--delay', '90m'))).stdout, 'Rescheduled 2 jobs.\n')
  assert.equal((await world.holdfast(...of('reprioritise', '7'))).stdout, 'Reprioritised 2 jobs.\n')
  assert.match(
    (await world.holdfast(...of('reprioritise', '7'), '--state', 'running')).stderr,
    /holdfast reprioritise takes jobs .* \(INVALID_OPTION\)/,
  )
  assert.match(
    (await world.holdfast(...of('delete'), '--state', 'ready', '--ended-since', time)).stderr.replaceAll(/\s+/g, ' '),
    /filter: --state names ready, and --ended-since or --ended-before is only for jobs that have ended/,
  )
  assert.equal((await world.holdfast(...of('reschedule', '2020-01-31'))).stdout, 'Rescheduled 2 jobs.\n')
  const [running] = await holdfast.claim(['later'])
  assert.equal(
    (await world.holdfast(...of('delete'), '--dry-run')).stdout.replaceAll(/\s+/g, ' '),
    `Would delete 1 job. Would skip 1 job (running: cancel first, or wait): ${running?.job.id} `,
  )
  assert.deepEqual(await world.json(...of('delete')), {
    ...{ dryRun: false, changed: 1, looked: 3, next: null, remaining: 1 }, // two, and then one more time the one that runs
    skipped: [{ reason: 'running', count: 1, ids: [running?.job.id] }],
  })
  assert.match(
    (await world.holdfast(...of('delete'))).stdout,
    /^Deleted 0 jobs\. 1 job matches now: running, or enqueued since/,
  )
  assert.match(
    (await world.holdfast(...of('cancel'))).stdout,
    /^Cancelled 1 job\. Of these, 1 is running, and its worker is asked to stop\.\n$/,
  )
})

test('change gives a waiting job other parts, and job shows by which hand, in the order of time', async () => {
  await using world = await setup()
  await using holdfast = await open(world.url)
  const byTenant = defineQueue('mail', { limit: { key: 'tenant', concurrency: 1 } })
  const { id } = await holdfast.queue(byTenant).enqueue({ tenant: 't1' })
  const payload = '{"tenant":"t2"}'
  const parts = ['--payload', payload, '--attempts', '7', '--headers', '{"a":"b"}', '--labels', '{"c":"d"}']
  assert.equal(
    (await world.holdfast('change', id, ...parts, '--by', 'ada')).stdout,
    `Changed payload, attempts, headers, labels of ${id}: it is ready.\n`,
  )
  const changed = await holdfast.job(id)
  assert.deepEqual([changed?.payload, changed?.limitKey, changed?.maxAttempts], [{ tenant: 't2' }, 't2', 7])
  assert.deepEqual([changed?.headers, changed?.labels], [{ a: 'b' }, { c: 'd' }])
  assert.deepEqual(await world.json('change', id, '--no-limit-key'), { id, state: 'ready' })
  const noKey = await world.holdfast('change', id, '--limit-key', 't3')
  assert.equal(noKey.code, 0)
  await world.holdfast('change', id, '--payload', '{"tenant":"t3"}')
  const refused = await world.holdfast('change', id, '--payload', '{}')
  assert.match(refused.stderr, /or --limit-key, or --no-limit-key for a job without a key\. \(LIMIT_KEY_REQUIRED\)\n$/)
  assert.match((await world.holdfast('change', id)).stderr, /^holdfast: Give at least one of --payload, /)
  assert.match((await world.holdfast('change', id, '--payload', '{')).stderr, /^holdfast: The payload is not JSON/)

  const [lease] = await holdfast.claim([byTenant], { worker: 'w1' })
  await lease?.dead(new Error('given up'))
  await world.holdfast('requeue', id, '--by', 'bob')
  await world.holdfast('reprioritise', id, '0', '--by', 'eve')
  await world.holdfast('reschedule', id, '2040-01-31T09:00:00.000Z', '--by', 'eve')
  const { stdout } = await world.holdfast('job', id)
  const timeline = stdout.slice(stdout.indexOf('ATTEMPT')).split('\n').slice(1)
  const rows = [
    /^ +changed payload, attempts, headers, labels +by ada /,
    /^ +changed limitKey /,
    /^ +changed limitKey /,
  ]
  rows.push(/^ +changed payload /, /^ +1 +failed +w1 /, /^ +requeued +by bob /, /^ +reprioritised +by eve /)
  rows.push(/^ +rescheduled +by eve /)
  for (const [i, row] of rows.entries()) assert.match(timeline[i] ?? '', row)
})

test('requeue takes one dead job by its id, or all that match, and has a dry run', async () => {
  await using world = await setup()
  const { deadIds } = await world.history()
  const [id = ''] = deadIds
  assert.equal(
    (await world.holdfast('requeue', '--queue', 'mail', '--error', 'smtp', '--dry-run')).stdout,
    'Would requeue 2 jobs.\n',
  )
  assert.equal((await world.holdfast('requeue', id)).stdout, `Requeued ${id}.\n`)
  assert.match((await world.holdfast('requeue', id)).stderr, /INVALID_STATE/)
  const none = { dryRun: false, changed: 0, skipped: [], next: null }
  const { looked: _, ...answer } = (await world.json('requeue', '--error', 'another')) as Record<string, unknown>
  assert.deepEqual(answer, none)
  assert.equal((await world.holdfast('requeue', '--queue', 'mail', '--by', 'ada')).stdout, 'Requeued 1 job.\n')
})

test('dead-groups counts dead jobs by queue and error', async () => {
  await using world = await setup()
  await world.history()
  const { groups } = await world.json('dead-groups', '--queue', 'mail', '--order', 'largest')
  assert.deepEqual(
    groups.map(({ queue, dead }: { queue: string; dead: number }) => [queue, dead]),
    [['mail', 2]],
  )
  const { stdout } = await world.holdfast('dead-groups')
  assert.match(stdout, new RegExp(`2 .*mail +${groups[0].group} +.*smtp`))
  assert.equal((await world.json('jobs', '--error-group', groups[0].group)).jobs.length, 2)
  await using holdfast = await open(world.url)
  await holdfast.queue('pay').enqueue(1)
  const [lease] = await holdfast.claim(['pay'])
  const message = `the card of the customer was declined by the bank ${'for a reason '.repeat(9)}`
  await lease?.dead(Object.assign(new Error(message), { code: 'PSP' }))
  assert.match((await world.holdfast('dead-groups', '--queue', 'pay')).stdout, /1 .*pay +\w{16} +\[PSP\] the card/)
  assert.equal((await world.holdfast('dead-groups', '--queue', 'nowhere')).stdout, 'No job is dead.\n')
  assert.match((await world.holdfast('dead-groups', '--order', 'oldest')).stderr, /INVALID_OPTION/)
})

test('sweep prints what it has done', async () => {
  await using world = await setup()
  await world.holdfast('enqueue', 'welcome', '1', '--delay', '1')
  assert.deepEqual(await world.json('sweep'), {
    ...{ rescued: 0, promoted: 1, overdue: 0, admitted: 0, pruned: 0, fired: 0, skipped: 0, dead: 0 },
  })
})

test('sweep says how many jobs died, and explain says so before; a second accept is INVALID_STATE; one clock', async () => {
  await using world = await setup()
  const queue = defineQueue<number>('mail', { attempts: 1 })
  const [last, more, offered] = await (async () => {
    await using holdfast = await open(world.url, { logger: false })
    const { id: lastId } = await holdfast.queue(queue).enqueue(1)
    const { id: moreId } = await holdfast.queue(queue).enqueue(2, { attempts: 3 })
    await holdfast.claim(['mail'], { max: 2, lease: '1s', worker: 'w1' })
    const { id } = await holdfast.queue('extract').enqueue(3)
    const worker = holdfast.work('extract', async (job) => job.offer('x', { inbox: 'extracted' }), { sweep: false })
    await new Promise((resolve) => holdfast.on('job.snoozed', resolve))
    await worker.stop()
    return [lastId, moreId, id]
  })()
  await sleep(1_100)
  const { stdout } = await world.holdfast('explain', last as string)
  assert.match(
    stdout,
    /in attempt 1 of 1\. Its lease has expired\. This was its last attempt, and the next sweep makes it dead\./,
  )
  assert.match(stdout, /^since +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$/m)
  assert.match(
    (await world.holdfast('explain', more as string)).stdout,
    /in attempt 1 of 3\. .* the next sweep rescues it/,
  )
  assert.match((await world.holdfast('sweep')).stdout, /^Rescued 1, 1 died in the last attempt, promoted 0/)
  assert.match(
    (await world.holdfast('explain', offered as string)).stdout,
    /^The job is offered in inbox extracted until/,
  )
  assert.equal((await world.holdfast('inbox', 'accept', 'extracted', offered as string)).code, 0)
  const second = await world.holdfast('inbox', 'accept', 'extracted', offered as string)
  assert.deepEqual([second.code, /another consumer was first.* The job is done\./.test(second.stderr)], [1, true])
})

test('gate closes, opens and lists, and opening a gate that was never closed is exit code 1', async () => {
  await using world = await setup()
  await world.holdfast('kv', 'put', 'k', '1')
  assert.equal((await world.holdfast('gate', 'list')).stdout, 'No gate was ever closed.\n')
  const missing = await world.holdfast('gate', 'open', 'logn')
  assert.deepEqual([missing.code, missing.stderr], [1, 'holdfast: Gate logn was never closed.\n'])
  const closed = await world.holdfast('gate', 'close', 'login', '--reason', 'new\npassword')
  assert.equal(closed.stdout, 'Closed gate login for the first time.\n')
  assert.equal((await world.holdfast('gate', 'close', 'login')).stdout, 'Gate login is already closed: new password\n')
  const { stdout } = await world.holdfast('gate', 'list')
  assert.match(stdout, /^GATE +STATE +CLOSED +BY +REASON\nlogin +closed +.* ago +holdfast gate +new password\n$/)
  assert.equal((await world.holdfast('gate', 'open', 'login')).stdout, 'Opened gate login.\n')
  const again = await world.json('gate', 'open', 'login')
  assert.deepEqual([again.opened, again.open], [false, true])
  const [listed] = await world.json('gate', 'list')
  assert.deepEqual(listed, { name: 'login', open: true, generation: again.generation })
  assert.equal((await world.holdfast('gate', 'close', 'login')).stdout, 'Closed gate login.\n')
})

test('schedules are listed, paused, resumed, run and removed', async () => {
  await using world = await setup()
  {
    await using holdfast = await open(world.url)
    await holdfast.schedule('nightly', { cron: '30 2 * * *', timeZone: 'Europe/Berlin', queue: 'reports', payload: 7 })
  }
  const listed = await world.holdfast('schedules')
  assert.match(
    listed.stdout,
    /^SCHEDULE +CRON +QUEUE +NEXT +LAST +DECLARED\nnightly +30 2 .* Europe\/Berlin +reports +in /,
  )
  assert.equal((await world.holdfast('schedule', 'pause', 'nightly')).stdout, 'Paused schedule nightly.\n')
  assert.equal((await world.holdfast('schedule', 'pause', 'nightly')).stdout, 'Schedule nightly is already paused.\n')
  assert.match((await world.holdfast('schedules')).stdout, / reports +paused /)
  assert.equal((await world.holdfast('schedule', 'resume', 'nightly')).stdout, 'Resumed schedule nightly.\n')
  const { id } = await world.json('schedule', 'run', 'nightly')
  assert.equal((await world.json('job', id)).payload, 7)
  assert.match((await world.holdfast('schedule', 'remove', 'nightly')).stdout, /^Removed schedule nightly\./)
  const missing = await world.holdfast('schedule', 'remove', 'nightly')
  assert.deepEqual([missing.code, missing.stderr], [1, 'holdfast: There is no schedule nightly.\n'])
  const unknown = await world.holdfast('schedule', 'run', 'nightly')
  assert.deepEqual(
    [unknown.code, unknown.stderr],
    [1, 'holdfast: There is no schedule nightly. (SCHEDULE_NOT_FOUND)\n'],
  )
})

test('kv puts, gets, deletes and scans, and a missing key is exit code 1', async () => {
  await using world = await setup()
  const { version } = await world.json('kv', 'put', 'cursor/a', '{"page":7}', '--ttl', '1h')
  await world.holdfast('kv', 'put', 'cursor/b', '"b"')
  await world.holdfast('kv', 'put', 'other', 'null')
  assert.equal((await world.json('kv', 'get', 'cursor/a')).version, version)
  assert.equal((await world.holdfast('kv', 'get', 'cursor/a')).stdout, '{\n  "page": 7\n}\n')
  const scanned = await world.json('kv', 'scan', 'cursor/')
  assert.deepEqual(
    scanned.map(({ key, value }: { key: string; value: unknown }) => [key, value]),
    [
      ['cursor/a', { page: 7 }],
      ['cursor/b', 'b'],
    ],
  )
  assert.match((await world.holdfast('kv', 'scan', '--limit', '1')).stdout, /There are more: raise --limit, now 1\.\n$/)
  const stale = await world.holdfast('kv', 'delete', 'cursor/a', '--if-version', '0')
  const kept = `holdfast: cursor/a has version ${version} and was not deleted.\n`
  assert.deepEqual(stale, { code: 1, stdout: '', stderr: kept })
  const latest = await world.json('kv', 'put', 'cursor/c', '1')
  const gone = await world.json('kv', 'delete', 'cursor/c', '--if-version', String(latest.version))
  assert.deepEqual(gone, { key: 'cursor/c', deleted: true, version: null })
  assert.equal((await world.holdfast('kv', 'delete', 'cursor/a')).stdout, 'Deleted cursor/a.\n')
  const missing = await world.holdfast('kv', 'get', 'cursor/a')
  assert.deepEqual(missing, { code: 1, stdout: '', stderr: 'holdfast: There is no key cursor/a.\n' })
})

test('output has colours on request, and never with NO_COLOR', async () => {
  await using world = await setup({ FORCE_COLOR: '1' })
  await world.history()
  const { stdout } = await world.holdfast('queues')
  assert.notEqual(stripVTControlCharacters(stdout), stdout)

  await using plain = await setup({ NO_COLOR: '1' })
  await plain.history()
  const quiet = await plain.holdfast('queues')
  assert.equal(stripVTControlCharacters(quiet.stdout), quiet.stdout)
})

test('a pipe that its reader closes early is no error', async () => {
  await using world = await setup()
  await using holdfast = await open(world.url)
  const payload = 'x'.repeat(1_000)
  await holdfast.queue('mail').enqueueMany(Array.from({ length: 1_000 }, () => ({ payload })))
  const child = spawn(process.execPath, [bin, 'jobs', '--limit', '1000'], world.spawnOptions)
  child.stdin.end()
  child.stdout.once('data', () => child.stdout.destroy())
  const stderr = text(child.stderr)
  const code = await new Promise((resolve) => child.once('close', resolve))
  assert.deepEqual([code, await stderr], [0, ''])
})

test('watch prints a line for every change, up to a count or until it is interrupted', async () => {
  await using world = await setup()
  await using client = await open(world.url)
  let isOver = false
  const enqueuing = (async () => {
    while (!isOver) await Promise.all([client.queue('mail').enqueue(1), client.queue('post').enqueue(1), sleep(20)])
  })()
  const { code, stdout } = await world.holdfast('watch', '--queue', 'mail', '--limit', '2')
  assert.equal(code, 0)
  assert.match(stdout, /^(\d{4}-[\d:.T-]+Z {2}[0-9a-f-]{36} {2}ready {2}mail\n){2}$/)

  const child = spawn(process.execPath, [bin, 'watch', '--json', '--state', 'ready'], world.spawnOptions)
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
  for await (const line of createInterface(child.stdout)) {
    assert.deepEqual(Object.keys(JSON.parse(line)), ['id', 'queue', 'state', 'at', 'cursor'])
    if (!isOver) child.kill('SIGINT')
    isOver = true
  }
  assert.equal(await ended, 0)
  await enqueuing
  assert.equal((await world.holdfast('watch', '--state', 'asleep')).code, 2)
})

async function setup(extra: NodeJS.ProcessEnv = {}) {
  const scratch = await scratchDirectory()
  const { FORCE_COLOR, NO_COLOR, ...inherited } = process.env
  const env = { ...inherited, HOLDFAST_STORE: 'sqlite:jobs.db', ...extra }
  const url = `sqlite:${join(scratch.path, 'jobs.db')}`
  const spawnOptions = { cwd: scratch.path, env, stdio: 'pipe' } as const

  const holdfastWith = async (input: string, ...args: string[]) => {
    const child = spawn(process.execPath, [bin, ...args], spawnOptions)
    child.stdin.end(input)
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
    const [code, stdout, stderr] = await Promise.all([ended, text(child.stdout), text(child.stderr)])
    return { code, stdout, stderr }
  }
  const holdfast = (...args: string[]) => holdfastWith('', ...args)
  const json = async (...args: string[]) => {
    const { code, stdout, stderr } = await holdfast(...args, '--json')
    assert.equal(code, 0, stderr)
    return JSON.parse(stdout)
  }

  /** A process stores the definition. */
  const define = async (definition: AnyDefinition) => {
    await using client = await open(url)
    await client.claim([definition])
  }

  /** One job done, two dead after their second attempt, one scheduled. */
  const history = async () => {
    await using client = await open(url)
    const mail = client.queue('mail', { attempts: 2 })
    await mail.enqueue('done')
    await (await mail.claim())[0]?.done()
    const dead = await mail.enqueueMany([{ payload: 'dead-1' }, { payload: 'dead-2' }])
    const refused = Object.assign(new Error('connect to smtp'), { code: 'ECONNREFUSED' })
    for (let attempt = 1; attempt <= 2; attempt++) {
      for (const lease of await mail.claim({ max: 2, worker: 'w1' })) {
        await lease.retry(new Error('no answer from smtp', { cause: refused }), { delay: 0 })
      }
    }
    await mail.enqueue('later', { delay: '1h' })
    return { deadIds: dead.map(({ id }) => id) }
  }

  return {
    ...{ url, spawnOptions, holdfast, holdfastWith, json, define, history },
    files: () => readdir(scratch.path),
    [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose](),
  }
}
