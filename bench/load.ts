// The measured work. It uses only the public API, so that it runs on every store.

import type { Holdfast, Lease, Queue } from '../src/index.ts'

/** About 100 bytes as JSON. */
export const payload = {
  to: 'customer@example.com',
  template: 'welcome',
  locale: 'en',
  order: 1234567890,
  note: 'a hundred bytes',
}

export const queueName = 'bench'

/** Callers that each wait for their own answer before they enqueue again. */
export async function enqueueSingly(queue: Queue, { jobs, callers }: { jobs: number; callers: number }): Promise<void> {
  let left = jobs
  const caller = async () => {
    while (left-- > 0) await queue.enqueue(payload)
  }
  await Promise.all(Array.from({ length: callers }, caller))
}

export async function enqueueInBulk(queue: Queue, { jobs, group }: { jobs: number; group: number }): Promise<void> {
  for (let sent = 0; sent < jobs; sent += group) await queue.enqueueMany(entries(Math.min(group, jobs - sent)))
}

/** Claims batch after batch; the jobs of one batch are settled one by one while the next is being claimed. */
export async function drain(queue: Queue, { jobs, batch }: { jobs: number; batch: number }): Promise<void> {
  let settled: Promise<unknown> = Promise.resolve()
  for (let left = jobs; left > 0; ) {
    const leases = await claimSome(queue, Math.min(batch, left))
    left -= leases.length
    await settled
    settled = settleAll(leases)
  }
  await settled
}

/** Enqueue a group, claim it, settle it, and only then the next. */
export async function cycleInTurn(queue: Queue, { jobs, group }: { jobs: number; group: number }): Promise<void> {
  for (let sent = 0; sent < jobs; sent += group) {
    await queue.enqueueMany(entries(group))
    await settleAll(await claimSome(queue, group))
  }
}

/** A producer beside a consumer: one group is enqueued while the one before is claimed and the one before that settled. */
export async function cycleOverlapped(queue: Queue, { jobs, group }: { jobs: number; group: number }): Promise<void> {
  let settled: Promise<unknown> = Promise.resolve()
  await queue.enqueueMany(entries(group))
  for (let sent = group; sent <= jobs; sent += group) {
    const enqueued = sent < jobs ? queue.enqueueMany(entries(group)) : Promise.resolve()
    const leases = await claimSome(queue, group)
    await settled
    settled = settleAll(leases)
    await enqueued
  }
  await settled
}

/** Milliseconds from the call of enqueue until a waiting claim has the job, and until enqueue itself answers. */
export async function idlePickUps(
  queue: Queue,
  { samples, pauseMs }: { samples: number; pauseMs: number | (() => number) },
): Promise<{ pickUpMs: number[]; answerMs: number[] }> {
  const pickUpMs: number[] = []
  const answerMs: number[] = []
  for (let i = 0; i < samples; i++) {
    const claimed = queue.claim({ wait: '10s' })
    await pause(typeof pauseMs === 'function' ? pauseMs() : pauseMs)
    const startedAt = performance.now()
    const enqueued = queue.enqueue(payload).then(() => answerMs.push(performance.now() - startedAt))
    const [lease] = await claimed
    pickUpMs.push(performance.now() - startedAt)
    await enqueued
    await lease?.done()
  }
  return { pickUpMs, answerMs }
}

/** Microseconds of each of `claims` claims, one after the other. */
export async function timedClaims(queue: Queue, { claims, max }: { claims: number; max: number }): Promise<number[]> {
  const taken: number[] = []
  for (let i = 0; i < claims; i++) {
    const startedAt = performance.now()
    const leases = await queue.claim({ max, lease: '10m' })
    taken.push((performance.now() - startedAt) * 1_000)
    if (leases.length !== max) throw new Error(`A claim of ${max} got ${leases.length}: this run is invalid.`)
  }
  return taken
}

export function benchQueue(holdfast: Holdfast): Queue {
  return holdfast.queue(queueName)
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

export function entries(count: number) {
  return Array.from({ length: count }, () => ({ payload }))
}

async function claimSome(queue: Queue, max: number): Promise<Lease[]> {
  const leases = await queue.claim({ max })
  if (leases.length === 0) throw new Error('Jobs wait, but a claim found nothing: this run is invalid.')
  return leases
}

function settleAll(leases: readonly Lease[]): Promise<unknown> {
  return Promise.all(leases.map((lease) => lease.done()))
}
