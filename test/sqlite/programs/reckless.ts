// Works at full speed until it is killed. Every answer it got is in its log before it goes on: one line each,
//   enqueued <id> | settled <id> | put <key> | held <id> <attempt>
// so that what the file holds afterwards can be compared with what was promised.
//   reckless.ts <path> <log> <life>
import { openSync, writeSync } from 'node:fs'
import { isHoldfastError } from '../../../src/errors.ts'
import { open } from '../../../src/open.ts'
import { say } from './conversation.ts'

const [path = '', log = '', life = ''] = process.argv.slice(2)
const file = openSync(log, 'a')
const note = (line: string) => writeSync(file, `${line}\n`)

const holdfast = await open(`sqlite:${path}`)
const work = holdfast.queue('work', { attempts: 50, retain: { done: Number.POSITIVE_INFINITY } })
const lanes = [enqueueOne, enqueueOne, enqueueMany, settle, settle, put]
lanes.map(async (lane, n) => {
  for (let round = 0; ; round++) await lane(`${life}-${n}-${round}`)
})
hold()
say('working')

async function enqueueOne(label: string): Promise<void> {
  const { id } = await work.enqueue(label)
  note(`enqueued ${id}`)
}

async function enqueueMany(label: string): Promise<void> {
  const answers = await work.enqueueMany([0, 1, 2].map((n) => ({ payload: `${label}-${n}` })))
  for (const { id } of answers) note(`enqueued ${id}`)
}

async function settle(): Promise<void> {
  const leases = await work.claim({ max: 4, lease: '1s', wait: 100 })
  await Promise.all(
    leases.map(async (lease) => {
      const { id } = lease.job
      try {
        const effects = { put: [{ key: `done ${id}`, value: id }], enqueue: [{ queue: 'after', payload: id }] }
        await lease.done(id, effects)
        note(`settled ${id}`)
      } catch (error) {
        if (!isHoldfastError(error, 'LEASE_LOST')) throw error // on a slow machine another may have taken it over
      }
    }),
  )
}

async function put(label: string): Promise<void> {
  await holdfast.kv.put(`put ${label}`, label)
  note(`put ${label}`)
}

/** Takes one job and never gives it back. */
async function hold(): Promise<void> {
  const [lease] = await work.claim({ lease: '1m', wait: '10s' })
  note(`held ${lease?.job.id} ${lease?.job.attempt}`)
}
