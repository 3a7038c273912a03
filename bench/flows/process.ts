// A process of the benchmark: it opens one contender, measures one load, sends the figures to its parent and ends.

import { type ContenderName, openContender, type Place } from './contender.ts'

export type Load =
  /** So many runs, of which at most `inFlight` run at a time. */
  | { readonly as: 'rate'; readonly runs: number; readonly inFlight: number }
  /** One run at a time, with a pause between two. */
  | { readonly as: 'idle'; readonly runs: number; readonly pauseMs: number }

export interface Order {
  readonly contender: ContenderName
  readonly place: Place
  readonly load: Load
}

/** `perSecond` of a rate, or the milliseconds from the start of each run until its function had returned. */
export type Figures = { readonly perSecond: number } | { readonly latenciesMs: readonly number[] }

process.once('disconnect', () => process.exit()) // the parent process has ended
const order = JSON.parse(process.argv[2] ?? '{}') as Order
const figures = await measure(order)
process.send?.(figures, () => process.exit()) // also if a library still has something open

async function measure({ contender: name, place, load }: Order): Promise<Figures> {
  const contender = await openContender(name, place)
  const returned = new Map<number, () => void>()
  const told = (n: number) => returned.get(n)?.()
  const whenReturned = (n: number) => new Promise<void>((resolve) => returned.set(n, resolve))
  const measured = load.as === 'rate' ? rate : idle
  const numbers = Array.from({ length: load.runs }, (_, n) => n)
  await contender.work(load.as === 'rate' ? load.inFlight : 64, told)
  const warm = whenReturned(-1)
  await contender.start(-1)
  await warm
  const answer = await measured()
  await succeeded(contender, load.runs + 1)
  await contender.close()
  return answer

  /** All are started while the worker works, and the clock stops when the store says that all have succeeded. */
  async function rate(): Promise<Figures> {
    const all = Promise.all(numbers.map(whenReturned))
    const begun = performance.now()
    await Promise.all([contender.startAll(numbers), all])
    await succeeded(contender, load.runs + 1)
    return { perSecond: (load.runs * 1_000) / (performance.now() - begun) }
  }

  async function idle(): Promise<Figures> {
    const latenciesMs: number[] = []
    for (const n of numbers) {
      await new Promise((resolve) => setTimeout(resolve, load.as === 'idle' ? load.pauseMs : 0))
      const over = whenReturned(n)
      const begun = performance.now()
      await contender.start(n)
      await over
      latenciesMs.push(performance.now() - begun)
    }
    return { latenciesMs }
  }
}

async function succeeded(contender: Awaited<ReturnType<typeof openContender>>, runs: number): Promise<void> {
  const until = performance.now() + 30_000
  for (;;) {
    const count = await contender.succeeded()
    if (count === runs) return
    if (performance.now() > until) throw new Error(`${count} runs have succeeded, not ${runs}.`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
