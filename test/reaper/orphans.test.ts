// The five ways in which work that is recorded in an application's own table is left behind, each by a process that really
// dies there, and each healed by the reaper.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from '../../src/open.ts'
import { Program } from '../sqlite/process.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { type DocumentRow, extract, leftBehind, openDocuments, refine, revival, setState } from './documents.ts'

const classes = [
  'lost submit publish',
  'lost retry publish',
  'crashed run',
  'lost follow-up publish',
  'crashed follow-up',
] as const
const leftAs = ['submitted', 'submitted', 'extracting', 'extracted', 'refining']

test('the five classes of orphans are left behind without a reaper, and finished with one', async () => {
  await using world = await setup()
  const { db, holdfast } = world
  for (const [i, where] of classes.entries()) await world.dieAt(i + 1, where)
  const states = () =>
    db
      .prepare('select state from document order by id')
      .all()
      .map((row) => row['state'])
  assert.deepEqual(states(), leftAs)

  holdfast.work([
    [extract, async (job) => void setState(db, job.payload.id, 'done')],
    [refine, async (job) => void setState(db, job.payload.id, 'done')],
  ])
  await sleep(2_500) // leases run out, whoever is still to be tried is tried, and nothing comes back
  assert.deepEqual(states(), leftAs)

  const ran: { readonly revived: number; readonly duplicates: number }[] = []
  const clients = [holdfast, await world.another()]
  for (const client of clients) {
    client.on('reaper.ran', (event) => ran.push(event))
    const find = ({ limit }: { limit: number }) => leftBehind(db, limit)
    client.reaper('documents', { every: '100ms', find, enqueue: (row: DocumentRow) => revival(row) })
  }
  while (states().some((state) => state !== 'done')) await sleep(20)
  const revived = ran.reduce((sum, event) => sum + event.revived, 0)
  assert.ok(revived >= classes.length, `${revived} revived`)
})

test('HOLDFAST_DISABLE=reap leaves looking to others, and to whoever asks by hand', async () => {
  await using world = await setup()
  let searches = 0
  const find = () => {
    searches += 1
    return []
  }
  process.env['HOLDFAST_DISABLE'] = 'reap'
  try {
    const reaper = world.holdfast.reaper('documents', { every: '10ms', find, enqueue: revival })
    await sleep(200)
    assert.equal(searches, 0)
    await reaper.run()
    assert.equal(searches, 1)
  } finally {
    delete process.env['HOLDFAST_DISABLE']
  }
})

async function setup() {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'app.db')
  const clients: AsyncDisposable[] = []
  const another = async () => {
    const client = await open(`sqlite:${path}`, { logger: false })
    clients.push(client)
    return client
  }
  const holdfast = await another()
  const db = openDocuments(path)
  const dieAt = async (id: number, where: string) => {
    await using program = Program.start('../../reaper/programs/dies', path, String(id), where)
    assert.equal(await program.ended, 'SIGKILL', where)
  }
  const dispose = async () => {
    await Promise.all(clients.map((client) => client[Symbol.asyncDispose]()))
    db.close()
    await scratch[Symbol.asyncDispose]()
  }
  return { db, holdfast, another, dieAt, [Symbol.asyncDispose]: dispose }
}
