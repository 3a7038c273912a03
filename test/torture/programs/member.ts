// A process of the fleet: what it is told at its start, and what it hears and says later, over its channel. When whoever
// started it is gone, it goes too.

import { open } from '../../../src/open.ts'
import { postgres } from '../../../src/store/postgres/index.ts'
import { type Application, applicationAt } from '../application.ts'
import { Journal } from '../journal.ts'
import { Random } from '../random.ts'
import { block } from '../tasks.ts'
import type { AppWorld } from '../world.ts'

/** What every program is given, as JSON. */
export interface Duty {
  readonly url: string
  readonly log: string
  readonly life: string
  readonly seed: number
  readonly mayBeDown: boolean
  /** Where announcements go. */
  readonly receiver: string
  /** Whether it hears wake-ups; else it must look by itself. */
  readonly listens: boolean
  /** Whether store and application share one small pool, where there is one. */
  readonly sharesPool: boolean
}

export type Order =
  | { readonly do: 'block'; readonly ms: number }
  | { readonly do: 'poison'; readonly label: string }
  | { readonly do: 'stop' }

export type Word = { readonly said: 'open' } | { readonly said: 'settled'; readonly count: number }

process.on('SIGINT', () => {}) // is for whoever started it

export const duty: Duty = JSON.parse(process.argv[2] ?? '{}')

export function say(word: Word): void {
  if (process.connected) process.send?.(word)
}

export interface Member {
  readonly stop: () => Promise<unknown>
  readonly poison?: (label: string) => Promise<unknown>
  /** Rejects when it cannot go on. */
  readonly over?: Promise<unknown>
}

export async function openWorld(): Promise<AppWorld> {
  const { url, log, life, seed, mayBeDown } = duty
  const application = applicationAt(url)
  const holdfast = await withRetry(() => open(storeOf(application), { logger: false }))
  const journal = Journal.at(log, { mayBeDown })
  return { holdfast, journal, application, life, random: new Random(seed), now: () => Date.now() }
}

function storeOf({ pool }: Application) {
  const { url, listens, sharesPool } = duty
  const heard = listens ? {} : { listen: false as const }
  if (pool && sharesPool) return postgres({ pool, ...heard })
  return pool && !listens ? postgres({ url, ...heard }) : url
}

/** The store may be away just when a process starts. */
async function withRetry<T>(call: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await call()
    } catch (error) {
      if (!duty.mayBeDown || tries > 100) throw error
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
}

/** Does as it is told until it is told to stop. */
export async function serve({ holdfast, application, journal, life }: AppWorld, member: Member): Promise<void> {
  const stopped = Promise.withResolvers<void>()
  process.on('disconnect', () => process.exit(0))
  process.on('message', (order: Order) => {
    if (order.do === 'stop') stopped.resolve()
    if (order.do === 'block') block(order.ms)
    if (order.do === 'poison') member.poison?.(order.label).catch(stopped.reject)
  })
  say({ said: 'open' })
  await Promise.race([stopped.promise, member.over ?? stopped.promise])
  const end = await journal.begin('stop', { worker: life })
  await member.stop()
  await holdfast.close({ grace: '5s' })
  await end(true)
  await application[Symbol.asyncDispose]()
  process.disconnect()
}
