// A worker in a process of its own. It does what the payload of each job says. On its stdout it reports when a handler begins,
// why one was aborted, and every event. A line on its stdin lets the handlers of `waitForGo` end.
//   works.ts <url> <name> <options as JSON>
import { existsSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { EventName, HoldfastEvents } from '../../../src/events.ts'
import { open } from '../../../src/open.ts'
import type { Duration } from '../../../src/runtime/duration.ts'
import { type PostgresOptions, postgres } from '../../../src/store/postgres/index.ts'
import { sqlite } from '../../../src/store/sqlite/index.ts'
import type { Job } from '../../../src/worker/job.ts'
import { machineMs } from '../../sqlite/process.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'

export type Task =
  /** Returns the name of the worker after this time; with effects of every kind if asked for. */
  | { readonly do: 'work'; readonly ms?: number; readonly effects?: true }
  /** The same, once the test says go. */
  | { readonly do: 'waitForGo'; readonly effects?: true }
  /** The first attempt ends when its signal aborts, the next at once. */
  | { readonly do: 'waitForSignal' }
  /** The first attempt never ends and reads no signal, the next ends at once. */
  | { readonly do: 'hang' }
  /** Kills its process. */
  | { readonly do: 'die' }
  /** The first attempt blocks the event loop for this time and until the file exists. Then it returns or waits for its signal. */
  | { readonly do: 'block'; readonly ms: number; readonly until: string; readonly then: 'return' | 'waitForSignal' }

export interface WorksOptions {
  readonly lease: Duration
  readonly concurrency: number
  /** How many workers the process has, with numbered names; one unless given. */
  readonly workers?: number
  readonly grace?: Duration
  /** Of a SQLite file. */
  readonly busyTimeout?: Duration
  /** How to reach a PostgreSQL server if the URL alone is not enough. */
  readonly postgres?: PostgresOptions
}

/** `at` is in milliseconds of the machine's clock. */
export type Report =
  | { readonly began: string; readonly attempt: number }
  | { readonly unblocked: string; readonly at: number }
  | { readonly aborted: string; readonly code: string; readonly at: number }
  | { readonly event: EventName; readonly id?: string; readonly during?: string; readonly at: number }

const [url = '', name = '', text = ''] = process.argv.slice(2)
const works: WorksOptions = JSON.parse(text)
const { lease, concurrency, workers = 1, grace = '20s', busyTimeout, postgres: options } = works
const go = Promise.withResolvers<void>()
const quiet: readonly EventName[] = ['claim.ended', 'settle.ended', 'sweep.ended', 'job.started']

const file = busyTimeout && sqlite({ path: url.slice('sqlite:'.length), busyTimeout })
const store = file || (options ? postgres(options) : url)
const holdfast = await open(store, { logger: false })
holdfast.onAll((event, facts) => {
  if (!quiet.includes(event)) say({ event, ...idOf(facts), at: machineMs() } satisfies Report)
})
holdfast.closeOnSignals({ grace })
for (let n = 1; n <= workers; n++) {
  holdfast.work<Task>('tasks', perform, { name: workers > 1 ? `${name}/${n}` : name, lease, concurrency })
}
await hear()
go.resolve()

async function perform(job: Job<Task>): Promise<string> {
  say({ began: job.id, attempt: job.attempt } satisfies Report)
  const task = job.payload
  if (task.do === 'die') process.kill(process.pid, 'SIGKILL')
  if ('effects' in task) stage(job)
  if (task.do === 'work') await sleep(task.ms ?? 0)
  else if (task.do === 'waitForGo') await go.promise
  else if (job.attempt === 1) await performFirst(job, task)
  return name
}

async function performFirst(job: Job, task: Task): Promise<void> {
  if (task.do === 'hang') await new Promise(() => {})
  if (task.do === 'block') {
    const until = machineMs() + task.ms
    while (machineMs() < until || !existsSync(task.until));
    say({ unblocked: job.id, at: machineMs() } satisfies Report)
    if (task.then === 'return') return
  }
  await aborted(job)
}

function aborted({ id, signal }: Job): Promise<never> {
  return new Promise((_, reject) => {
    signal.addEventListener('abort', () => {
      say({ aborted: id, code: signal.reason.code, at: machineMs() } satisfies Report)
      reject(signal.reason)
    })
  })
}

function stage({ id, effects }: Job): void {
  effects.put(`${name}/${id}`, name)
  effects.enqueue('followUps', name)
  effects.sql('insert into effect (job, worker) values ($1, $2)', [id, name])
}

function idOf(facts: HoldfastEvents[EventName]): { readonly id?: string; readonly during?: string } {
  return { ...('id' in facts && { id: facts.id }), ...('during' in facts && { during: facts.during }) }
}
