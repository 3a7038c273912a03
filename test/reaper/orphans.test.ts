// The ways in which a row of an application loses its job, each by a process that is really killed there. If row and job are
// written separately, the row is an orphan until a reaper revives it. If they are written in one transaction, there are no
// orphans.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from '../../src/open.ts'
import { Program } from '../sqlite/process.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { type DocumentRow, Documents, extract, refine, revival } from './documents.ts'
import { extraction, hooks, refinement } from './held.ts'

const classes = [
  'lost submit publish',
  'lost retry publish',
  'crashed run',
  'lost follow-up publish',
  'crashed follow-up',
] as const
const leftAs = ['submitted', 'submitted', 'extracting', 'extracted', 'refining']

interface Place extends AsyncDisposable {
  readonly store: string
}

const places: Readonly<Record<string, () => Promise<Place>>> = {
  'a SQLite file': async () => {
    const scratch = await scratchDirectory()
    return { ...scratch, store: `sqlite:${join(scratch.path, 'app.db')}` }
  },
  'a PostgreSQL database': async () => {
    const database = await testDatabase()
    return { ...database, store: database.url }
  },
}

for (const [name, place] of Object.entries(places)) {
  describe(`in ${name}`, { concurrency: true }, () => {
    test('the five classes of orphans stay without a reaper, and are finished with one', async () => {
      await using world = await setup(await place())
      const { documents, holdfast } = world
      await Promise.all(classes.map((where, i) => world.dieAt('dies', i + 1, where)))
      assert.deepEqual(await documents.states(), leftAs)

      for (const [i] of classes.entries()) {
        for (const queue of [extract(i + 1), refine(i + 1)])
          holdfast.work(queue, (job) => documents.setState(job.payload.id, 'done'))
      }
      await sleep(2_500) // leases run out, remaining attempts are made, and no orphan is finished
      assert.deepEqual(await documents.states(), leftAs)

      const ran: { readonly revived: number; readonly duplicates: number }[] = []
      const clients = [holdfast, await world.another()]
      for (const client of clients) {
        client.on('reaper.ran', (event) => ran.push(event))
        const find = ({ limit }: { limit: number }) => documents.orphans(limit)
        client.reaper('documents', { every: '100ms', find, enqueue: (row: DocumentRow) => revival(row) })
      }
      await world.allDone()
      const revived = () => ran.reduce((sum, event) => sum + event.revived, 0)
      while (revived() < classes.length) await sleep(20)
    })

    test('no row, notification or webhook is lost if row and job are written in one transaction', async () => {
      await using world = await setup(await place())
      await using receiver = await listen()
      const { documents, holdfast } = world
      const deaths = ['lost notification', ...classes, 'lost webhook']
      const workOn = (id: number) => {
        holdfast.work(extraction(id), (job) => {
          job.effects.sql(documents.updateText(job.payload.id, 'extracted'))
          job.effects.enqueue(refinement(job.payload.id), job.payload)
        })
        holdfast.work(refinement(id), (job) => job.effects.sql(documents.updateText(job.payload.id, 'done')))
      }
      workOn(1) // waits for wake-ups
      await Promise.all(deaths.map((where, i) => world.dieAt('dies-held', i + 1, where, receiver.url)))
      assert.equal((await documents.states()).length, deaths.length - 1, 'one was never submitted')
      for (const i of deaths.keys()) if (i > 0) workOn(i + 1)
      hooks.work(holdfast)
      await world.allDone()
      assert.equal(await receiver.called, '{"id":7}')
    })
  })
}

test('with HOLDFAST_DISABLE=reap a process does not look for orphans, except by an explicit call', async () => {
  await using holdfast = await open('sqlite::memory:', { logger: false })
  let searches = 0
  const find = () => {
    searches += 1
    return []
  }
  process.env['HOLDFAST_DISABLE'] = 'reap'
  try {
    const reaper = holdfast.reaper('documents', { every: '10ms', find, enqueue: revival })
    await sleep(200)
    assert.equal(searches, 0)
    await reaper.run()
    assert.equal(searches, 1)
  } finally {
    delete process.env['HOLDFAST_DISABLE']
  }
})

async function setup(place: Place) {
  const { store } = place
  const clients: AsyncDisposable[] = []
  const another = async () => {
    const client = await open(store, { logger: false })
    clients.push(client)
    return client
  }
  const holdfast = await another()
  const documents = await Documents.open(store)
  const dieAt = async (program: string, id: number, where: string, ...rest: string[]) => {
    await using dying = Program.start(`../../reaper/programs/${program}`, store, String(id), where, ...rest)
    assert.equal(await dying.ended, 'SIGKILL', where)
  }
  const allDone = async () => {
    while ((await documents.states()).some((state) => state !== 'done')) await sleep(20)
  }
  const dispose = async () => {
    await Promise.all(clients.map((client) => client[Symbol.asyncDispose]()))
    await documents[Symbol.asyncDispose]()
    await place[Symbol.asyncDispose]()
  }
  return { documents, holdfast, another, dieAt, allDone, [Symbol.asyncDispose]: dispose }
}

async function listen() {
  const { promise: called, resolve } = Promise.withResolvers<string>()
  const server = createServer(async (request, response) => {
    resolve(Buffer.concat(await Array.fromAsync(request)).toString())
    response.end()
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return { url, called, [Symbol.asyncDispose]: async () => void server.close() }
}
