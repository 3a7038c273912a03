// A process of the fleet: the options it starts with, the commands it gets and the reports it sends over its channel. It ends
// when its parent ends.

import { open } from '../../../src/open.ts'
import { postgres } from '../../../src/store/postgres/index.ts'
import { type Application, applicationAt } from '../application.ts'
import { Journal } from '../journal.ts'
import { Random } from '../random.ts'
import { block } from '../tasks.ts'
import type { AppWorld } from '../world.ts'

/** The options of every program, passed as JSON. */
export interface ProgramOptions {
  readonly url: string
  readonly log: string
  readonly processName: string
  readonly seed: number
  readonly mayBeDown: boolean
  /** The URL that webhooks are sent to. */
  readonly receiver: string
  /** Whether it gets wake-ups. Without them it must poll. */
  readonly listens: boolean
  /** On PostgreSQL: whether store and application share one small pool. */
  readonly sharesPool: boolean
}

export type Command =
  | { readonly do: 'block'; readonly ms: number }
  | { readonly do: 'poison'; readonly label: string }
  | { readonly do: 'stop' }

export type Report = { readonly kind: 'open' } | { readonly kind: 'settled'; readonly count: number }

process.on('SIGINT', () => {}) // handled by the parent

export const options: ProgramOptions = JSON.parse(process.argv[2] ?? '{}')

export function report(message: Report): void {
  if (process.connected) process.send?.(message)
}

export interface Member {
  readonly stop: () => Promise<unknown>
  readonly poison?: (label: string) => Promise<unknown>
  /** Rejects when it cannot continue. */
  readonly over?: Promise<unknown>
}

export async function openWorld(): Promise<AppWorld> {
  const { url, log, processName, seed, mayBeDown } = options
  const application = applicationAt(url)
  const holdfast = await withRetry(() => open(storeOf(application), { logger: false }))
  const journal = Journal.at(log, { mayBeDown })
  return { holdfast, journal, application, processName, random: new Random(seed), now: () => Date.now() }
}

function storeOf({ pool }: Application) {
  const { url, listens, sharesPool } = options
  const wakeUps = listens ? {} : { listen: false as const }
  if (pool && sharesPool) return postgres({ pool, ...wakeUps })
  return pool && !listens ? postgres({ url, ...wakeUps }) : url
}

/** The store may be down at the moment when a process starts. */
async function withRetry<T>(call: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await call()
    } catch (error) {
      if (!options.mayBeDown || tries > 100) throw error
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
}

/** Performs commands until it is asked to stop. */
export async function serve({ holdfast, application, journal, processName }: AppWorld, member: Member): Promise<void> {
  const stopped = Promise.withResolvers<void>()
  process.on('disconnect', () => process.exit(0))
  process.on('message', (command: Command) => {
    if (command.do === 'stop') stopped.resolve()
    if (command.do === 'block') block(command.ms)
    if (command.do === 'poison') member.poison?.(command.label).catch(stopped.reject)
  })
  report({ kind: 'open' })
  await Promise.race([stopped.promise, member.over ?? stopped.promise])
  const end = await journal.begin('stop', { worker: processName })
  await member.stop()
  await holdfast.close({ grace: '5s' })
  await end(true)
  await application[Symbol.asyncDispose]()
  process.disconnect()
}
