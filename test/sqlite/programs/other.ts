// Another client on the file that runs one command at a time and prints when it was answered.
//   other.ts <path>
import type { Lease } from '../../../src/lease/lease.ts'
import { open } from '../../../src/open.ts'
import { machineMs } from '../process.ts'
import { hear, say } from './conversation.ts'

/** Its commands. `promote` sweeps until no job is scheduled. */
export type Command =
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
for (let command = await hear<Command>(); command; command = await hear<Command>()) {
  await act(command)
  say({ at: machineMs() } satisfies Answered)
}

async function act(command: Command): Promise<void> {
  if (typeof command === 'object' && 'cancel' in command) await holdfast.cancel(command.cancel)
  else if (typeof command === 'object') {
    const { enqueue, ...options } = command
    await mail.enqueueMany(Array.from({ length: enqueue }, (_, payload) => ({ payload, ...options })))
  } else if (command === 'claim') [held] = await mail.claim()
  else if (command === 'release') await held?.release()
  else if (command === 'resume') await holdfast.resume('mail')
  else while ((await holdfast.stats('mail')).scheduled > 0) await holdfast.sweep()
}
