// Settlements of claimed jobs: in every way, with effects and without, once, twice at once, late, or never.

import { setTimeout as sleep } from 'node:timers/promises'
import type { AnnotationOptions } from '../../src/lease/annotations.ts'
import type { Lease } from '../../src/lease/lease.ts'
import type { SettleMethod } from './journal.ts'
import { beforeKey, byHand, completions, effectsOf, leaseMaxMs, limited, type World, work } from './world.ts'

const choices = {
  done: 40,
  retry: 12,
  dead: 6,
  release: 6,
  snooze: 5,
  cancelled: 4,
  renewed: 6,
  twice: 6,
  badEffect: 3,
  abandoned: 15,
} as const

/** Leases that are settled only at this time: while they hold, after they have expired, or when another claim has the job. */
export type Abandoned = { readonly lease: Lease; readonly worker: string; readonly at: number }[]

/** Returns how many jobs were claimed. */
export async function claimAndSettle(world: World, label: string, abandoned: Abandoned): Promise<number> {
  const { random, waitMs = 20 } = world
  const queues = random.pick([['work'], byHand.map(({ name }) => name), ['after', 'deaths']])
  const leases = await claim(world, label, { queues, max: 1 + random.below(20), wait: waitMs })
  await Promise.all(leases.map((lease, n) => settleAtRandom(world, lease, label, `${label}-${n}`, abandoned)))
  return leases.length
}

interface ClaimOptions {
  readonly queues: readonly string[] | '*'
  readonly max: number
  readonly wait: number
  readonly leaseMs?: number
}

/** Claims by definition rather than by name, so that the backoff of the definition applies. */
export async function claim(
  { holdfast, journal, random }: World,
  worker: string,
  { queues, max, wait, leaseMs = Math.round(random.between(leaseMaxMs / 2, leaseMaxMs)) }: ClaimOptions,
): Promise<Lease[]> {
  let leases: Lease[] = []
  await journal.ask('claim', { worker, queues, leaseMs }, async () => {
    const defined = queues === '*' ? queues : queues.map((name) => definitions.get(name) ?? name)
    leases = await holdfast.claim(defined, { max, wait, lease: leaseMs, worker })
    return leases.map(({ job: { id, attempt }, fence }) => ({ id, fence, attempt }))
  })
  return leases
}

const definitions = new Map([...byHand, ...limited].map((definition) => [definition.name, definition]))

async function settleAtRandom(
  world: World,
  lease: Lease,
  worker: string,
  tag: string,
  abandoned: Abandoned,
): Promise<void> {
  const { random } = world
  const settle = (as: SettleMethod, options?: Omit<SettleOptions, 'worker' | 'as'>) =>
    settleAs(world, lease, { worker, as, ...options })
  if (lease.job.queue !== work.name) {
    // Follow-ups have no follow-ups of their own. Otherwise they would never end.
    await settle(random.weighted({ done: 8, release: 1, snooze: 1 }))
    return
  }
  // A job that is claimed again is often abandoned again, so that a late settlement of the first claim meets a second holder.
  const isAbandonedAgain = lease.job.attempt > 1 && random.chance(0.4)
  const choice = isAbandonedAgain ? 'abandoned' : random.weighted(choices)
  switch (choice) {
    case 'abandoned':
      abandoned.push({ lease, worker, at: world.now() + random.between(0, 3 * leaseMaxMs) })
      return
    case 'renewed':
      await renew(world, lease, worker)
      await settle('done', { tag, deletes: true })
      return
    case 'twice': {
      const second = random.pick(['done', 'retry', 'release', 'cancelled'] as const)
      await Promise.all([
        settle('done', { tag: `${tag}-a` }),
        settle(second, second === 'retry' || second === 'release' ? {} : { tag: `${tag}-b` }),
      ])
      await renew(world, lease, worker)
      return
    }
    case 'badEffect':
      await settle('done', { tag, hasBadEffect: true })
      return
    case 'done':
    case 'dead':
    case 'cancelled':
      await settle(choice, random.chance(0.6) ? { tag, deletes: random.chance(0.2) } : {})
      return
    default:
      await settle(choice)
  }
}

const limitedChoices = {
  done: 40,
  delayed: 20,
  retry: 10,
  dead: 8,
  release: 6,
  snooze: 5,
  renewed: 4,
  abandoned: 4,
} as const
const delayMaxMs = 40

/** The same for queues and batches that have a limit. Some jobs are kept for a while, so that others must wait for a slot. */
export async function claimLimited(world: World, worker: string, abandoned: Abandoned): Promise<number> {
  const { random, waitMs = 20 } = world
  const names = limited.map(({ name }) => name)
  const queues = random.chance(0.5) ? names : [random.pick(names)]
  const leases = await claim(world, worker, { queues, max: 1 + random.below(12), wait: waitMs })
  await Promise.all(leases.map((lease) => settleLimitedAtRandom(world, lease, worker, abandoned)))
  return leases.length
}

async function settleLimitedAtRandom(world: World, lease: Lease, worker: string, abandoned: Abandoned): Promise<void> {
  const { random } = world
  const isCompletion = lease.job.queue === completions.name
  const choice = isCompletion ? random.weighted({ done: 8, release: 1, snooze: 1 }) : random.weighted(limitedChoices)
  if (choice === 'abandoned') {
    abandoned.push({ lease, worker, at: world.now() + random.between(0, 3 * leaseMaxMs) })
    return
  }
  if (choice === 'delayed') await sleep(random.below(delayMaxMs))
  if (choice === 'renewed') await renew(world, lease, worker)
  await settleAs(world, lease, { worker, as: choice === 'delayed' || choice === 'renewed' ? 'done' : choice })
}

/** Tries to settle a lease that was abandoned before. */
export async function settleLate(world: World, label: string, abandoned: Abandoned): Promise<void> {
  const late = abandoned.findIndex(({ at }) => at < world.now())
  const [found] = late < 0 ? [] : abandoned.splice(late, 1)
  if (found) await settleAs(world, found.lease, { worker: found.worker, as: 'done', tag: label })
}

const shortMs = 30

/** Lets a lease expire, claims the job again, and settles with the first lease while the second holds it. */
export async function settleAfterReclaim(world: World, label: string): Promise<void> {
  const { holdfast, journal } = world
  const settle = (leases: readonly Lease[], worker: string) =>
    Promise.all(leases.map((lease, n) => settleAs(world, lease, { worker, as: 'done', tag: `${worker}-${n}` })))
  const queues = [work.name]
  const first = await claim(world, `${label}-first`, { queues, max: 1, wait: 0, leaseMs: shortMs })
  await sleep(2 * shortMs)
  await journal.ask('sweep', {}, () => holdfast.sweep().then(() => true as const))
  const next = await claim(world, `${label}-next`, { queues, max: 3, wait: 0 })
  await settle(first, `${label}-first`)
  await settle(next, `${label}-next`)
}

async function renew({ journal }: World, lease: Lease, worker: string): Promise<void> {
  await journal.ask('renew', { id: lease.job.id, worker, leaseMs: leaseMaxMs }, async () => {
    await lease.renew(leaseMaxMs)
    return true
  })
}

export interface SettleOptions {
  readonly worker: string
  readonly as: SettleMethod
  readonly tag?: string
  readonly deletes?: boolean
  readonly hasBadEffect?: boolean
}

export async function settleAs(
  world: World,
  lease: Lease,
  { worker, as, tag, hasBadEffect = false, ...options }: SettleOptions,
): Promise<void> {
  const { journal, random } = world
  const deletes = options.deletes === true && tag !== undefined && (await putBefore(world, tag))
  const effects = tag === undefined ? undefined : effectsOf(world, { tag, deletes, hasBadEffect })
  const result = as === 'done' && random.chance(0.4) ? `result of ${worker}` : null
  const annotations = lease.job.batch === null ? {} : annotation(world)
  const { outcome, costs } = annotations
  const spent = costs && { costs }
  const asked = { id: lease.job.id, fence: lease.fence, worker, as, result, tag: tag ?? null, deletes, hasBadEffect }
  await journal.ask('settle', { ...asked, ...(outcome !== undefined && { outcome }) }, async () => {
    switch (as) {
      case 'done':
        return stateOf(await lease.done(result ?? undefined, effects, annotations))
      case 'dead':
        return stateOf(await lease.dead(new Error('given up'), effects, { ...spent }))
      case 'cancelled':
        return stateOf(await lease.cancelled(effects))
      case 'retry': {
        const delay = random.chance(0.5) ? { delay: random.below(50) } : {}
        return stateOf(await lease.retry(new Error('once more'), { ...delay, ...spent }))
      }
      case 'release':
        return stateOf(await lease.release())
      case 'snooze':
        return stateOf(await lease.snooze(random.below(50)))
    }
  })
}

/** The annotations of an item of a batch. */
function annotation({ random }: World): AnnotationOptions {
  return {
    ...(random.chance(0.8) && { outcome: random.pick(['saved', 'duplicate', 'skipped']) }),
    ...(random.chance(0.2) && { warning: random.pick(['late', 'odd']) }),
    ...(random.chance(0.5) && { costs: { units: 1 + random.below(5), pages: random.below(3) } }),
  }
}

const stateOf = ({ state }: Awaited<ReturnType<Lease['done']>>) => ({ state })

async function putBefore({ holdfast, journal }: World, tag: string): Promise<boolean> {
  const key = beforeKey(tag)
  const put = await journal.ask('put', { key, value: tag }, async () => {
    await holdfast.kv.put(key, tag)
    return true
  })
  return put === true
}
