// What jobs do in a simulation. They end at once or after a while, in every possible way. They follow their signal, ignore it, or
// never read it.

import { Permanent } from '../../src/lease/permanent.ts'
import { RetryLater } from '../../src/lease/retry-later.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { pause, type Timers } from '../../src/runtime/clock.ts'
import type { Job } from '../../src/worker/job.ts'
import type { Random } from '../torture/random.ts'
import { after, effectKey, reservedJob, work } from '../torture/world.ts'
import { flowChildren } from './flows.ts'
import { guardedNames } from './guarded.ts'
import type { Running } from './lease-checker.ts'
import { leaseMs, timeoutMs, unwindMs } from './plan.ts'

export interface HandlerScene {
  readonly timers: Timers
  readonly random: Random
  /** No more faults come, and every job ends. */
  readonly isCalm: () => boolean
  /** A handler begins. */
  readonly began: (run: Running) => void
  /** This job kills the process that runs it. */
  readonly isPoison: (job: Job) => boolean
  readonly die: () => void
  /** A unique name for the effects of this run. */
  readonly tag: () => string
}

const fates = {
  done: 30,
  effects: 22,
  doomed: 3,
  throws: 14,
  later: 4,
  permanent: 6,
  release: 5,
  snooze: 6,
  extends: 3,
  /** Waits for its signal, and then ends at once. */
  hangs: 3,
  /** Goes on although its signal aborted. */
  ignores: 2,
} as const

const durations = { none: 35, short: 30, long: 17, leases: 18 } as const

export async function handle(scene: HandlerScene, job: Job): Promise<unknown> {
  const { timers, random } = scene
  const run: Running = { id: job.id, startedAt: timers.now(), endedAt: null, abortedAt: null }
  scene.began(run)
  if (scene.isPoison(job)) scene.die()
  try {
    if (!scene.isCalm() && job.queue === work.name) return await endByFate(scene, job, run)
    if (!scene.isCalm() && (guardedNames.has(job.queue) || job.queue === flowChildren.name))
      return await endGuarded(scene, job)
    return await pause(timers, random.between(0, 5))
  } finally {
    run.endedAt = timers.now()
  }
}

async function endByFate(scene: HandlerScene, job: Job, run: Running): Promise<unknown> {
  const { timers, random } = scene
  const fate = random.weighted(fates)
  if (random.chance(0.7)) listen(job, run, timers)
  if (random.chance(0.2)) job.progress(random.fraction(), 'on its way')
  await take(scene, job, durationOf(random))
  switch (fate) {
    case 'done':
      return random.chance(0.4) ? scene.tag() : undefined
    case 'effects':
    case 'doomed':
      return stageEffects(scene, job, fate === 'doomed')
    case 'throws':
      throw new Error('once more')
    case 'later':
      throw new RetryLater('later', { delay: random.below(300) })
    case 'permanent':
      throw new Permanent('given up', random.chance(0.5) ? { effects: effectsOf(scene.tag()) } : {})
    case 'release':
      return job.release()
    case 'snooze':
      return job.snooze(random.below(300))
    case 'extends':
      await job.extend(timeoutMs)
      await take(scene, job, leaseMs)
      return undefined
    case 'hangs':
      listen(job, run, timers)
      await pause(timers, Number.POSITIVE_INFINITY, job.signal)
      throw job.signal.reason
    case 'ignores':
      await pause(timers, timeoutMs + 2 * unwindMs)
      return scene.tag()
  }
}

/** Ends, fails or is put off after a while; its costs are counted. */
async function endGuarded(scene: HandlerScene, job: Job): Promise<unknown> {
  const { random } = scene
  await take(scene, job, durationOf(random))
  job.cost('tokens', 1)
  if (random.chance(0.15)) throw new Error('once more')
  if (random.chance(0.1)) throw new Permanent('given up')
  if (random.chance(0.1)) return random.chance(0.5) ? job.release() : job.snooze(random.below(300))
  return job.outcome(random.pick(['saved', 'duplicate']), null)
}

/** Records when the signal aborts. */
function listen(job: Job, run: Running, timers: Timers): void {
  const note = () => {
    run.abortedAt ??= timers.now()
  }
  if (job.signal.aborted) note()
  else job.signal.addEventListener('abort', note, { once: true })
}

/** Half of the handlers end early when their signal aborts. */
async function take({ timers, random }: HandlerScene, job: Job, ms: number): Promise<void> {
  const follows = random.chance(0.5)
  await pause(timers, ms, follows ? job.signal : undefined)
  if (follows) job.signal.throwIfAborted()
}

function durationOf(random: Random): number {
  switch (random.weighted(durations)) {
    case 'none':
      return 0
    case 'short':
      return random.between(1, 60)
    case 'long':
      return random.between(60, leaseMs)
    case 'leases':
      return random.between(leaseMs, timeoutMs)
  }
}

/** The effects of a permanent failure. */
function effectsOf(tag: string): Effects {
  return {
    put: [{ key: effectKey(tag), value: tag }],
    enqueue: [{ queue: after, payload: { label: tag, kind: 'after' } }],
  }
}

/** With the same names as in the torture run, whose judge reads them. */
function stageEffects(scene: HandlerScene, job: Job, doomed: boolean): string {
  const tag = scene.tag()
  job.effects.put(effectKey(tag), tag)
  job.effects.enqueue(after, { label: tag, kind: 'after' })
  if (doomed) job.effects.enqueue(work, { label: `doomed ${tag}`, kind: 'plain' }, { id: reservedJob.id as string })
  return tag
}
