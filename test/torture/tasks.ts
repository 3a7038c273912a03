// Jobs for workers with handlers: how they are enqueued, and what their handlers do.

import { setTimeout as sleep } from 'node:timers/promises'
import type { StandardSchemaV1 } from '@standard-schema/spec'
import type { AttemptInfo } from '../../src/client/job-info.ts'
import type { JobFacts } from '../../src/events.ts'
import { Permanent } from '../../src/lease/permanent.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { isFate } from '../../src/worker/fate.ts'
import type { Job } from '../../src/worker/job.ts'
import type { Entry, TaskBehaviour } from './journal.ts'
import {
  type AppWorld,
  after,
  attempts,
  calls,
  effectKey,
  type Labelled,
  leaseMaxMs,
  orphans,
  type Task,
  taskOptions,
  tasks,
  taskTag,
  ticks,
  type World,
} from './world.ts'

const behaviours = {
  quick: 40,
  effects: 30,
  long: 4,
  throw: 8,
  permanent: 3,
  snooze: 4,
  release: 3,
  hang: 1,
  block: 1,
  outcome: 2,
  unreadable: 2,
} as const satisfies Partial<Record<TaskBehaviour, number>>

const waitMaxMs = 500

export async function enqueueTask(world: World, label: string): Promise<void> {
  const { holdfast, journal, random } = world
  const id = await enqueueAs(world, label, random.weighted(behaviours))
  if (id === undefined || !random.chance(0.3)) return
  await journal.ask('result', { id }, async () => ({ value: await holdfast.result(id, { timeout: waitMaxMs }) }))
}

/** Enqueues a task that kills every process that runs it. */
export async function enqueuePoison(world: World, label: string): Promise<void> {
  await enqueueAs(world, label, 'die')
}

async function enqueueAs(
  { holdfast, journal, random }: World,
  label: string,
  behaviour: TaskBehaviour,
): Promise<string | undefined> {
  const delay = random.chance(0.1) ? random.below(100) : 0
  const entry: Entry = { label, kind: 'task', queue: tasks.name, attempts, priority: 5, behaviour }
  const answer = await journal.ask('enqueue', { entries: [entry] }, async () => [
    await holdfast.queue(tasks).enqueue({ label, kind: 'task', behaviour }, { delay }),
  ])
  return answer?.[0]?.id
}

export interface WorkersOptions {
  /** The URL that webhooks are sent to. */
  readonly receiver: string
  /** The process that drains must survive the tasks that kill others. */
  readonly isLast: boolean
}

/** Starts the workers of all queues with handlers. They run until the client is closed. */
export function startWorkers(world: AppWorld, options: WorkersOptions): void {
  const { holdfast, journal, processName, application } = world
  const lost = ({ id, worker, attempt }: JobFacts) => journal.record('lost', { id, worker, attempt }, true)
  holdfast.on('lease.lost', lost)
  holdfast.on('settle.failed', lost)
  journal.record('work', { worker: processName }, true)
  holdfast.work(
    [
      [readTasks, (job) => noted(world, job, () => perform(job, options))],
      [ticks, () => 'tick'],
      [orphans, (job: Job<Labelled>) => deleteRow(job)],
      [calls.queue, calls.handler],
    ],
    { name: processName, concurrency: 10, lease: leaseMaxMs, unwind: 500 },
  )
  holdfast.reaper('orphans', {
    every: 300,
    find: ({ limit }) => application.abandoned(limit),
    enqueue: (tag) => ({ queue: orphans, payload: { label: tag, kind: 'orphan' }, dedup: { key: tag } }),
  })
}

/** The definition that workers use: its schema rejects some payloads of the queue. */
const readable: StandardSchemaV1<Task, Task> = {
  '~standard': {
    version: 1,
    vendor: 'torture',
    validate: (value) =>
      (value as Task).behaviour === 'unreadable'
        ? { issues: [{ message: 'cannot be read' }] }
        : { value: value as Task },
  },
}
const readTasks = defineQueue(tasks.name, { ...taskOptions, payload: readable })

/** The handler of a task. Returns the label, unless the task asks for something else. */
async function perform(job: Job<Task>, { receiver, isLast }: WorkersOptions): Promise<unknown> {
  const { label, behaviour } = job.payload
  switch (behaviour) {
    case 'effects':
      addEffects(job, taskTag(label), receiver)
      break
    case 'outcome':
      job.cost('units', 2)
      return job.outcome('saved', label, label.endsWith('1') ? { warning: 'late' } : {})
    case 'long':
      await sleep(2 * leaseMaxMs, undefined, { signal: job.signal })
      await job.progress(0.5, 'half-way')
      await sleep(leaseMaxMs, undefined, { signal: job.signal })
      break
    case 'throw':
      throw new Error('once more')
    case 'permanent':
      throw new Permanent('given up')
    case 'snooze':
      if (job.attempt === 1 && Math.random() < 0.7) return job.snooze(20)
      break
    case 'release':
      if (Math.random() < 0.7) return job.release()
      break
    case 'hang':
      await new Promise((_, reject) => job.signal.addEventListener('abort', () => reject(job.signal.reason)))
      break
    case 'block':
      block(leaseMaxMs / 2)
      break
    case 'die':
      if (isLast) throw new Error('would have killed the process')
      process.kill(process.pid, 'SIGKILL')
      await new Promise(() => {})
  }
  return label
}

/** Blocks the event loop for `ms`. */
export function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms)
}

function addEffects({ effects }: Job, tag: string, receiver: string): void {
  effects.enqueue(after, { label: tag, kind: 'after' })
  effects.put(effectKey(tag), tag)
  effects.sql(`insert into effect (tag) values ('${tag}')`)
  effects.enqueue(calls.queue, calls.call(receiver, { tag }))
}

function deleteRow({ effects, payload }: Job<Labelled>): string {
  effects.sql(`delete from orphan where tag = '${payload.label}'`)
  return payload.label
}

function endingOf(made: unknown): AttemptInfo['ending'] {
  if (!isFate(made) || made.fate === 'outcome') return 'done'
  return made.fate === 'snooze' ? 'snoozed' : 'released'
}

/** Notes a run and how it ended. The end of an aborted run is not noted, because the reason of the abort decides it. */
async function noted(
  { journal, processName }: AppWorld,
  job: Job<Task>,
  handler: () => Promise<unknown>,
): Promise<unknown> {
  const { id, attempt, batch, signal } = job
  const end = await journal.begin('run', { id, worker: processName, attempt, batch })
  try {
    const made = await handler()
    if (!signal.aborted) await end(endingOf(made))
    return made
  } catch (error) {
    if (!signal.aborted) await end('failed')
    throw error
  }
}
