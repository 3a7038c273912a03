// What becomes of claimed jobs: every way to settle, with effects and without, once, twice, late, or never.

import { setTimeout as sleep } from 'node:timers/promises'
import type { AnnotationOptions } from '../../src/lease/annotations.ts'
import type { Lease } from '../../src/lease/lease.ts'
import type { Way } from './journal.ts'
import { beforeKey, byHand, completions, effectsOf, leaseMaxMs, limited, type World, work } from './world.ts'

const fates = {
  done: 40,
  retry: 12,
  dead: 6,
  release: 6,
  snooze: 5,
  cancelled: 4,
  renewed: 6,
  twice: 6,
  doomed: 3,
  abandoned: 15,
} as const

/** Leases that somebody comes back to at this time: while they hold, once their time is over, or when others have the job. */
export type Abandoned = { readonly lease: Lease; readonly worker: string; readonly at: number }[]

/** Answers how many it had. */
export async function claimAndSettle(world: World, label: string, abandoned: Abandoned): Promise<number> {
  const { random, waitMs = 20 } = world
  const queues = random.pick([['work'], byHand.map(({ name }) => name), ['after', 'deaths']])
  const leases = await claim(world, label, { queues, max: 1 + random.below(20), wait: waitMs })
  await Promise.all(leases.map((lease, n) => meetFate(world, lease, label, `${label}-${n}`, abandoned)))
  return leases.length
}

interface Claiming {
  readonly queues: readonly string[] | '*'
  readonly max: number
  readonly wait: number
  readonly leaseMs?: number
}

/** By the definitions, so that their backoff counts. */
export async function claim(
  { holdfast, journal, random }: World,
  worker: string,
  { queues, max, wait, leaseMs = Math.round(random.between(leaseMaxMs / 2, leaseMaxMs)) }: Claiming,
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

async function meetFate(world: World, lease: Lease, worker: string, tag: string, abandoned: Abandoned): Promise<void> {
  const { random } = world
  const settle = (as: Way, options?: Omit<Settling, 'worker' | 'as'>) =>
    settleAs(world, lease, { worker, as, ...options })
  if (lease.job.queue !== work.name) {
    // Follow-ups have none of their own, or there would be no end of them.
    await settle(random.weighted({ done: 8, release: 1, snooze: 1 }))
    return
  }
  // Whoever has it again shall have it for a while: the first may come back meanwhile.
  const isLeftAgain = lease.job.attempt > 1 && random.chance(0.4)
  const fate = isLeftAgain ? 'abandoned' : random.weighted(fates)
  switch (fate) {
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
    case 'doomed':
      await settle('done', { tag, doomed: true })
      return
    case 'done':
    case 'dead':
    case 'cancelled':
      await settle(fate, random.chance(0.6) ? { tag, deletes: random.chance(0.2) } : {})
      return
    default:
      await settle(fate)
  }
}

const limitedFates = {
  done: 40,
  kept: 20,
  retry: 10,
  dead: 8,
  release: 6,
  snooze: 5,
  renewed: 4,
  abandoned: 4,
} as const
const keptMaxMs = 40

/** The same of queues and batches that have a limit: some hold what they have for a while, so that others must wait. */
export async function claimLimited(world: World, worker: string, abandoned: Abandoned): Promise<number> {
  const { random, waitMs = 20 } = world
  const names = limited.map(({ name }) => name)
  const queues = random.chance(0.5) ? names : [random.pick(names)]
  const leases = await claim(world, worker, { queues, max: 1 + random.below(12), wait: waitMs })
  await Promise.all(leases.map((lease) => meetLimitedFate(world, lease, worker, abandoned)))
  return leases.length
}

async function meetLimitedFate(world: World, lease: Lease, worker: string, abandoned: Abandoned): Promise<void> {
  const { random } = world
  const isNotice = lease.job.queue === completions.name
  const fate = isNotice ? random.weighted({ done: 8, release: 1, snooze: 1 }) : random.weighted(limitedFates)
  if (fate === 'abandoned') {
    abandoned.push({ lease, worker, at: world.now() + random.between(0, 3 * leaseMaxMs) })
    return
  }
  if (fate === 'kept') await sleep(random.below(keptMaxMs))
  if (fate === 'renewed') await renew(world, lease, worker)
  await settleAs(world, lease, { worker, as: fate === 'kept' || fate === 'renewed' ? 'done' : fate })
}

/** Somebody comes back to a lease, and tries. */
export async function settleLate(world: World, label: string, abandoned: Abandoned): Promise<void> {
  const late = abandoned.findIndex(({ at }) => at < world.now())
  const [found] = late < 0 ? [] : abandoned.splice(late, 1)
  if (found) await settleAs(world, found.lease, { worker: found.worker, as: 'done', tag: label })
}

const shortMs = 30

/** Somebody comes back to a lease just when another, mostly this very process, has the job. */
export async function haunt(world: World, label: string): Promise<void> {
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

export interface Settling {
  readonly worker: string
  readonly as: Way
  readonly tag?: string
  readonly deletes?: boolean
  readonly doomed?: boolean
}

export async function settleAs(
  world: World,
  lease: Lease,
  { worker, as, tag, doomed = false, ...options }: Settling,
): Promise<void> {
  const { journal, random } = world
  const deletes = options.deletes === true && tag !== undefined && (await putBefore(world, tag))
  const effects = tag === undefined ? undefined : effectsOf(world, { tag, deletes, doomed })
  const result = as === 'done' && random.chance(0.4) ? `result of ${worker}` : null
  const annotations = lease.job.batch === null ? {} : annotation(world)
  const { outcome, costs } = annotations
  const spent = costs && { costs }
  const asked = { id: lease.job.id, fence: lease.fence, worker, as, result, tag: tag ?? null, deletes, doomed }
  await journal.ask('settle', { ...asked, ...(outcome !== undefined && { outcome }) }, async () => {
    switch (as) {
      case 'done':
        return told(await lease.done(result ?? undefined, effects, annotations))
      case 'dead':
        return told(await lease.dead(new Error('given up'), effects, { ...spent }))
      case 'cancelled':
        return told(await lease.cancelled(effects))
      case 'retry': {
        const delay = random.chance(0.5) ? { delay: random.below(50) } : {}
        return told(await lease.retry(new Error('once more'), { ...delay, ...spent }))
      }
      case 'release':
        return told(await lease.release())
      case 'snooze':
        return told(await lease.snooze(random.below(50)))
    }
  })
}

/** Of an item. */
function annotation({ random }: World): AnnotationOptions {
  return {
    ...(random.chance(0.8) && { outcome: random.pick(['saved', 'duplicate', 'skipped']) }),
    ...(random.chance(0.2) && { warning: random.pick(['late', 'odd']) }),
    ...(random.chance(0.5) && { costs: { units: 1 + random.below(5), pages: random.below(3) } }),
  }
}

const told = ({ state }: Awaited<ReturnType<Lease['done']>>) => ({ state })

async function putBefore({ holdfast, journal }: World, tag: string): Promise<boolean> {
  const key = beforeKey(tag)
  const put = await journal.ask('put', { key, value: tag }, async () => {
    await holdfast.kv.put(key, tag)
    return true
  })
  return put === true
}
