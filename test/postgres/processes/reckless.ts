// Works at full speed until it is killed or told to stop, whatever becomes of the server meanwhile. Every answer it got is
// in its log before it goes on, one line each: `enqueued <id>` or `settled <id>`.
//   reckless.ts <url> <log> <life>
import { openSync, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../../src/errors.ts'
import { open } from '../../../src/open.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'
import { done, work } from './work.ts'

const [url = '', log = '', life = ''] = process.argv.slice(2)
const file = openSync(log, 'a')
const note = (line: string) => writeSync(file, `${line}\n`)
let isOver = false
/** So that settling, which is dearer, keeps up. */
const pauseMs = 10

const holdfast = await open(url)
const queue = holdfast.queue(work)
const lanes = [enqueueOne, enqueueOne, enqueueMany, settle, settle].map(async (lane, n) => {
  for (let round = 0; !isOver; round++) await patiently(() => lane(`${life}-${n}-${round}`))
})
say('working')
await hear()
isOver = true
await Promise.all(lanes)
await holdfast.close()
say('stopped')
process.exit(0)

async function enqueueOne(label: string): Promise<void> {
  const { id } = await queue.enqueue(label)
  note(`enqueued ${id}`)
  await sleep(pauseMs)
}

async function enqueueMany(label: string): Promise<void> {
  const answers = await queue.enqueueMany([0, 1, 2].map((n) => ({ payload: `${label}-${n}` })))
  for (const { id } of answers) note(`enqueued ${id}`)
  await sleep(pauseMs)
}

async function settle(): Promise<void> {
  const leases = await queue.claim({ max: 40, lease: '1s', wait: 100 })
  await Promise.all(
    leases.map((lease) =>
      patiently(async () => {
        await done(lease)
        note(`settled ${lease.job.id}`)
      }),
    ),
  )
}

/** The server may be gone, or another have taken the job over meanwhile. */
async function patiently(action: () => Promise<void>): Promise<void> {
  try {
    await action()
  } catch (error) {
    if (isHoldfastError(error, 'STORE_UNAVAILABLE')) await sleep(50)
    else if (!isHoldfastError(error, 'LEASE_LOST')) throw error
  }
}
