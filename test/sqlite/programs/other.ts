// Another client on the file that does what it is told, one thing at a time, and says when it was answered.
//   other.ts <path>
import type { Lease } from '../../../src/lease/lease.ts'
import { open } from '../../../src/open.ts'
import { machineMs } from '../process.ts'
import { hear, say } from './conversation.ts'

/** What it can be told to do. `promote` sweeps until what was scheduled no longer is. */
export type Told =
  | { readonly enqueue: number; readonly delay?: number }
  | { readonly cancel: string }
  | 'claim'
  | 'release'
  | 'resume'
  | 'promote'

/** When it was answered, in milliseconds of the machine's clock. */
export interface Answered {
  readonly at: number
}

const [path = ''] = process.argv.slice(2)
let held: Lease | undefined

await using holdfast = await open(`sqlite:${path}`)
const mail = holdfast.queue<number>('mail')
say('ready')
for (let told = await hear<Told>(); told; told = await hear<Told>()) {
  await act(told)
  say({ at: machineMs() } satisfies Answered)
}

async function act(told: Told): Promise<void> {
  if (typeof told === 'object' && 'cancel' in told) await holdfast.cancel(told.cancel)
  else if (typeof told === 'object') {
    const { enqueue, ...options } = told
    await mail.enqueueMany(Array.from({ length: enqueue }, (_, payload) => ({ payload, ...options })))
  } else if (told === 'claim') [held] = await mail.claim()
  else if (told === 'release') await held?.release()
  else if (told === 'resume') await holdfast.resume('mail')
  else while ((await holdfast.stats('mail')).scheduled > 0) await holdfast.sweep()
}
