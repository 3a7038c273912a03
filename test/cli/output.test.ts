// What the command prints for people: it fits a terminal of 80 columns, contains no control character of a stranger, and a
// mistyped name changes nothing.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import test from 'node:test'
import { stripVTControlCharacters } from 'node:util'
import { defineQueue, open } from '../../src/index.ts'
import { root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'

const bin = join(root, 'bin/holdfast.js')
const columns = 80
const longQueue = 'newsletter-of-the-northern-region.welcome-mail-to-new-subscribers'
const longText = 'the mail server of the northern region has refused the connection '.repeat(3).trim()

test('on 80 columns no line of any command is wider, no word is broken, and names and ids are whole', async () => {
  await using world = await setup({ COLUMNS: String(columns) })
  const { deadId, batchId } = await world.fill()
  const commands = [
    ...[
      ['queues'],
      ['jobs'],
      ['jobs', '--state', 'dead', '--include', 'payload'],
      ['job', deadId],
      ['explain', deadId],
      ['schedules'],
    ],
    ...[
      ['batch', 'list'],
      ['batch', 'show', batchId],
      ['inbox', 'list', 'reviewed'],
      ['gate', 'list'],
      ['kv', 'scan'],
    ],
    ...[['workers'], ['sweep'], ['limit', longQueue], ['pause', longQueue], ['resume', longQueue], ['doctor']],
    ...[
      ['requeue', '--queue', longQueue, '--dry-run'],
      ['delete', '--queue', longQueue, '--state', 'dead'],
    ],
  ]
  const check = async (args: string[]) => {
    const { stdout, stderr } = await world.holdfast(...args)
    for (const line of `${stdout}${stderr}`.split('\n')) assertFits(line, args)
  }
  await Promise.all(commands.map(check))
  const { stdout } = await world.holdfast('jobs', '--include', 'payload')
  assert.match(stdout, new RegExp(`^ {2}${longQueue} `, 'm'), 'a row is folded, and its queue is whole')
  assert.match(stdout, / {2}{?.*the mail server.*…$/m, 'the last column is cut')
})

test('on 80 columns the longest helps fit, and its sentences wrap at words', async () => {
  await using world = await setup({ COLUMNS: String(columns) })
  const bare = await world.holdfast()
  for (const line of bare.stderr.split('\n')) assertFits(line, [])
  const longest = [[], ['batch'], ['flow'], ['jobs'], ['enqueue'], ['limit'], ['migrate']]
  const helps = await Promise.all(longest.map((args) => world.holdfast(...args, '--help')))
  for (const { stdout } of helps) {
    const [, examples = ''] = stdout.split('Examples:\n')
    for (const line of stdout.replace(examples, '').split('\n')) assertFits(line, ['--help'])
  }
})

test('an error that is too long for the terminal wraps at words; without a terminal it is one line', async () => {
  await using narrow = await setup({ COLUMNS: '60' })
  await using wide = await setup()
  const { stderr } = await narrow.holdfast('queues')
  assert.ok(stderr.trimEnd().split('\n').length > 1)
  assert.equal((await wide.holdfast('queues')).stderr.trimEnd().split('\n').length, 1)
})

test('explain of a dead job says the first line of its error, without JSON and without a stack', async () => {
  await using world = await setup()
  const { deadId } = await world.fill()
  const { stdout } = await world.holdfast('explain', deadId)
  assert.match(stdout, /^error +the mail server of the northern region/m)
  assert.doesNotMatch(stdout, / {4}at |"stack"|[{}]/)
})

test('a value and SQL are printed as they are, whatever the width', async () => {
  await using world = await setup({ COLUMNS: String(columns) })
  await world.holdfast('kv', 'put', 'k', JSON.stringify({ text: longText }))
  assert.deepEqual(JSON.parse((await world.holdfast('kv', 'get', 'k')).stdout), { text: longText })
  const { stdout } = await world.holdfast('migrate', '--print')
  await using wide = await setup()
  assert.equal(stdout, (await wide.holdfast('migrate', '--print')).stdout)
})

const evil = ['\u202e', '\u202a', '\u2066', '\u2069', '\u200f', '\u009b', '\u0085', '\u001b[8m', '\u0007', '\u2028']
const evilText = `a${evil.join('b')}c`

test('control characters and bidirectional overrides are escaped in every output, and JSON keeps its meaning', async () => {
  await using world = await setup({ FORCE_COLOR: '1' })
  {
    await using holdfast = await open(world.url, { logger: false })
    const options = { attempts: 1, headers: { 'x-note': evilText }, dedup: { key: evilText } }
    await holdfast.queue('mail').enqueue({ evil: evilText }, options)
    const [lease] = await holdfast.claim(['mail'], { worker: evilText })
    await lease?.retry(new Error(evilText))
    await holdfast.kv.put(evilText, evilText)
    await holdfast.gate('login').close(evilText)
    await holdfast.batch({ name: evilText, key: 'march' }, [{ queue: 'post', payload: evilText }])
    await holdfast.pause('mail', { by: evilText })
  }
  const { jobs } = await world.json('jobs', '--state', 'dead', '--include', 'payload')
  const [{ id }] = jobs
  assert.equal(jobs[0].payload.evil, evilText, 'JSON has the same text, escaped')
  const commands = [
    ...[
      ['jobs', '--include', 'payload'],
      ['job', id],
      ['explain', id],
      ['kv', 'scan'],
      ['kv', 'get', evilText],
      ['kv', 'get', `x${evilText}`],
    ],
    ...[
      ['gate', 'list'],
      ['batch', 'list'],
      ['batch', 'show', 'march'],
      ['batch', 'results', 'march'],
    ],
    ...[['batch', 'show', evilText], ['job', evilText], ['pause', evilText], [evilText], ['jobs', `--${evilText}`]],
    ...[
      ['schedule', 'pause', evilText],
      ['enqueue', 'mail', evilText],
      ['jobs', '--store', `sqlite:${evilText}`],
    ],
  ]
  const asJson = [['jobs'], ['kv', 'scan'], ['batch', 'list'], [evilText]].map((args) => [...args, '--json'])
  const check = async (args: string[]) => {
    const { stdout, stderr } = await world.holdfast(...args)
    const printed = stripColours(stdout + stderr)
    assert.doesNotMatch(printed, /[^\P{Cc}\n]|[\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/u, args.join(' '))
  }
  await Promise.all([...commands, ...asJson].map(check))
})

test('a name that every object has is no verb, no command and no option', async () => {
  await using world = await setup()
  const names = ['constructor', '__proto__']
  const calls = names.flatMap((name) => [
    ...['batch', 'flow', 'gate', 'inbox', 'kv', 'schedule'].map((command) => [command, name, 'x']),
    ...[[name], ['jobs', `--${name}`]],
  ])
  const check = async (args: string[]) => {
    const { code, stderr } = await world.holdfast(...args)
    assert.equal(code, 2, `${args.join(' ')}: ${stderr}`)
    assert.match(stderr, /^holdfast: [^\n]+\n$/, args.join(' '))
  }
  await Promise.all(calls.map(check))
})

test('pause, resume, limit and the verbs for many jobs refuse a queue that does not exist, and create none', async () => {
  await using world = await setup()
  await world.holdfast('enqueue', 'welcome', '1')
  const calls = [['pause'], ['resume'], ['limit'], ['limit', '--concurrency', '1']]
  for (const [command = '', ...options] of calls) {
    const { code, stderr, stdout } = await world.holdfast(command, 'wlecome', ...options)
    assert.match(stderr, /^holdfast: There is no queue wlecome \(there is welcome\)\. holdfast queues lists them/)
    assert.deepEqual([code, stdout], [1, ''], command)
  }
  const many = [['requeue'], ['requeue', '--dry-run'], ['requeue', '--error', 'ECONNREFUSED'], ['cancel'], ['delete']]
  for (const args of [...many, ['reschedule', '2030-01-31'], ['reprioritise', '0']]) {
    const { code, stderr, stdout } = await world.holdfast(...args, '--queue', 'wlecome')
    assert.match(stderr, /^holdfast: There is no queue wlecome \(there is welcome\)\. .*nothing was changed\.\n$/)
    assert.deepEqual([code, stdout], [1, ''])
  }
  assert.deepEqual(await world.queues(), ['welcome'])
  assert.equal((await world.holdfast('pause', 'later', '--create')).stdout, 'Paused later: 0 waiting, 0 running.\n')
  assert.deepEqual(await world.queues(), ['later', 'welcome'])
})

test('jobs and watch say that there is no such queue, and which one has a similar name', async () => {
  await using world = await setup()
  await world.holdfast('enqueue', 'welcome', '1')
  const note = 'holdfast: There is no queue wlecome (there is welcome). holdfast queues lists them.\n'
  const none = await world.holdfast('jobs', '--queue', 'wlecome')
  assert.deepEqual(none, { code: 0, stdout: 'No jobs match.\n', stderr: note })
  const json = await world.holdfast('jobs', '--queue', 'wlecome', '--json')
  assert.deepEqual([JSON.parse(json.stdout), json.stderr], [{ jobs: [], looked: 0, next: null }, note])
  assert.equal((await world.holdfast('jobs', '--queue', 'welcome', '--state', 'dead')).stderr, '')
  const watching = world.start('watch', '--queue', 'wlecome')
  const [said] = (await once(watching.stderr, 'data')) as [Buffer]
  watching.kill('SIGINT')
  assert.equal(String(said), note)
  await once(watching, 'close')
})

test('enqueue and batch submit say that they create a queue, and which one has a similar name', async () => {
  await using world = await setup()
  assert.doesNotMatch((await world.holdfast('enqueue', 'welcome', '1')).stderr, /queue/, 'the store is new')
  assert.equal((await world.holdfast('enqueue', 'welcome', '2')).stderr, '')
  const typo = await world.holdfast('enqueue', 'welcom', '3')
  assert.deepEqual([typo.code, typo.stderr], [0, 'holdfast: creating a new queue welcom (there is welcome)\n'])
  await writeFile(join(world.path, 'items.jsonl'), '1\n2\n')
  const batch = await world.holdfast('batch', 'submit', 'items.jsonl', '--queue', 'mail')
  assert.deepEqual([batch.code, batch.stderr], [0, 'holdfast: creating a new queue mail\n'])
})

function assertFits(line: string, args: readonly string[]): void {
  const width = [...stripVTControlCharacters(line)].length
  // one word that is wider than a line stays whole
  if (!line.trim().includes(' ')) return
  assert.ok(width <= columns, `${args.join(' ')} prints ${width} columns: ${line}`)
}

function stripColours(printed: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a colour begins with one
  return printed.replace(/\u001b\[(?:0|1|2|22|3[1-6]|39)m/g, '')
}

async function setup(extra: NodeJS.ProcessEnv = {}) {
  const scratch = await scratchDirectory()
  const { FORCE_COLOR, NO_COLOR, COLUMNS, ...inherited } = process.env
  const env = { ...inherited, HOLDFAST_STORE: 'sqlite:jobs.db', ...extra }
  const url = `sqlite:${join(scratch.path, 'jobs.db')}`

  const start = (...args: string[]) =>
    spawn(process.execPath, [bin, ...args], { cwd: scratch.path, env, stdio: 'pipe' })
  const holdfast = async (...args: string[]) => {
    const child = start(...args)
    child.stdin.end()
    const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
    const [code, stdout, stderr] = await Promise.all([ended, text(child.stdout), text(child.stderr)])
    return { code, stdout, stderr }
  }
  const json = async (...args: string[]) => JSON.parse((await holdfast(...args, '--json')).stdout)

  /** Long names and long texts in every table. */
  const fill = async () => {
    await using client = await open(url, { logger: false })
    const definition = defineQueue<unknown>(longQueue, { attempts: 1, limit: { concurrency: 5 } })
    const queue = client.queue(definition)
    const { id: deadId } = await queue.enqueue({ text: longText })
    const [lease] = await queue.claim({ worker: 'worker-7.rack-12.northern-region.example.org' })
    await lease?.retry(new Error(`${longText}\nand so on`))
    await queue.enqueue({ text: longText })
    await queue.enqueue({ text: longText }, { delay: '1h' })
    await client.kv.put(`${longQueue}/cursor`, { text: longText })
    await client.gate(longQueue).close(longText)
    await client.schedule(longQueue, { cron: '30 2 * * *', timeZone: 'Europe/Berlin', queue: longQueue, payload: 1 })
    const { id: batchId } = await client.batch({ name: longText, key: longQueue }, [
      { queue: 'offers', payload: longText },
    ])
    const worker = client.work('offers', async (job) => job.offer(longText, { inbox: 'reviewed' }), { sweep: false })
    await new Promise((resolve) => client.on('job.snoozed', resolve))
    await worker.stop()
    return { deadId, batchId }
  }

  return {
    ...{ url, path: scratch.path, start, holdfast, json, fill },
    queues: async () => (await json('queues')).map(({ name }: { name: string }) => name).sort(),
    [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose](),
  }
}
