// Sends requests of a worker to the store. Requests that arrive while a flush is in flight are collected, and go out together in
// the next one. Each request gets its own answer.
//
// LATE ANSWERS. If a request waits for another open transaction, the store may answer it with a promise. Then that request leaves
// its flush, its lease is renewed meanwhile, and the next flush goes out.
//
// OUTAGES. While the store is away, requests are kept and sent again under the same token. The token shows whether a flush was
// committed although its answer was lost; without it such a flush would look like a lost lease.
//
// GIVING UP. Requests are dropped only when the worker stops and its time to flush is over, also if the store has not answered
// a flush that is under way: it may wait for another open transaction, or for a server that is gone. Then the leases run out, and
// the jobs are rescued. A flush that was sent may still be carried out; its fence keeps it from being carried out twice.

import { randomUUID } from 'node:crypto'
import { weightMax } from '../client/weight.ts'
import { orAborted } from '../runtime/aborted.ts'
import { pause, type Timers } from '../runtime/clock.ts'
import { isAway, isOutage, type Outage, requireAnswers } from './outage.ts'

/** A request, and what waits for its answer. */
export interface Pending<Answer> {
  answered(answer: Answer): void
  /** It could not be sent, and is not sent again. */
  gaveUp(error: Error): void
}

export type Answers<Answer> = readonly (Answer | Promise<Answer>)[]

export interface FlushesContext<Kept, Answer> {
  readonly timers: Timers
  readonly outage: Outage
  /** Aborts when requests that were not answered are given up. */
  readonly over: AbortSignal
  send(requests: readonly Kept[], token: string): Promise<Answers<Answer>>
  weigh(request: Kept): number
  /** Called when the request is about to be sent first. False: there is nothing to send any more. */
  seal?(request: Kept): boolean
  /** A flush was answered or given up. */
  flushed?(answered: number, durationMs: number): void
  /** What a request is told that is given up. */
  stopped(): Error
}

/** Requests that were sent together, and their token. */
interface Flush<Kept> {
  readonly asked: readonly Kept[]
  readonly token: string
}

const againMs = 1_000

export class Flushes<Kept extends Pending<Answer>, Answer> {
  readonly #context: FlushesContext<Kept, Answer>
  readonly #waiting: Kept[] = []
  /** Requests that the store answered with a promise. */
  readonly #late = new Set<Promise<void>>()
  #count = 0
  #flushing: Promise<void> | null = null

  constructor(context: FlushesContext<Kept, Answer>) {
    this.#context = context
  }

  /** How many are not answered yet. */
  get size(): number {
    return this.#count
  }

  add(request: Kept): void {
    this.#waiting.push(request)
    this.#count += 1
    this.#flushing ??= this.#flushAll()
  }

  /** Resolves when no request is under way. */
  async idle(): Promise<void> {
    while (this.#flushing || this.#late.size > 0) await (this.#flushing ?? Promise.race(this.#late))
  }

  async #flushAll(): Promise<void> {
    try {
      await nextTick() // runs that end in the same turn of the event loop share a flush
      while (this.#waiting.length > 0) {
        const group = this.#take()
        if (group.length > 0) await this.#flush(group)
      }
    } finally {
      this.#flushing = null
    }
  }

  async #flush(group: readonly Kept[]): Promise<void> {
    const { timers, over, flushed } = this.#context
    const startedAt = timers.now()
    const answers = new Map<Kept, Answer>()
    const late = new Set<Kept>()
    try {
      await this.#ask(group, answers, late)
    } catch (error) {
      if (!isOutage(error) && group.length > 1 && !over.aborted) {
        // One request may have caused the error. Each is sent alone, so that the others are not lost with it.
        for (const kept of group) if (!late.has(kept)) await this.#flush([kept])
        return
      }
      for (const kept of group) if (!answers.has(kept) && !late.has(kept)) kept.gaveUp(error as Error)
    }
    const isAnswered = (kept: Kept) => !late.has(kept)
    this.#count -= late.size === 0 ? group.length : group.filter(isAnswered).length
    flushed?.(answers.size, timers.now() - startedAt)
    for (const [kept, answer] of answers) kept.answered(answer)
  }

  /** Sends until each has its answer. A store that is away may answer so for some of the requests, or reject the whole call. */
  async #ask(group: readonly Kept[], answers: Map<Kept, Answer>, late: Set<Kept>): Promise<void> {
    const { outage, over } = this.#context
    const token = randomUUID()
    const ask = async () => {
      const isOpen = (kept: Kept) => !answers.has(kept) && !late.has(kept)
      const asked = answers.size + late.size === 0 ? group : group.filter(isOpen)
      const received = await this.#send(asked, token)
      asked.forEach((kept, i) => {
        const answer = received[i] as Answer | Promise<Answer>
        if (answer instanceof Promise) {
          late.add(kept)
          this.#await(kept, answer, { asked, token })
        } else if (!isAway(answer)) answers.set(kept, answer)
      })
      requireAnswers(received)
    }
    await outage.survive(ask, over)
  }

  async #send(requests: readonly Kept[], token: string): Promise<Answers<Answer>> {
    const { over, send, stopped } = this.#context
    const received = await orAborted(send(requests, token), over)
    if (received === undefined) throw stopped()
    return received
  }

  #await(kept: Kept, answer: Promise<Answer>, flush: Flush<Kept>): void {
    const answering = this.#answerLate(kept, answer, flush).finally(() => this.#late.delete(answering))
    this.#late.add(answering)
  }

  async #answerLate(kept: Kept, answer: Promise<Answer>, flush: Flush<Kept>): Promise<void> {
    try {
      const answered = await this.#lateAnswer(kept, answer, flush)
      this.#count -= 1
      kept.answered(answered)
    } catch (error) {
      this.#count -= 1
      kept.gaveUp(error as Error)
    }
  }

  /** If the store goes away meanwhile, the whole flush is sent again under its token, so that it answers as it did then. */
  async #lateAnswer(kept: Kept, promised: Promise<Answer>, { asked, token }: Flush<Kept>): Promise<Answer> {
    const { outage, timers, over, stopped } = this.#context
    for (let answer: Answer | Promise<Answer> = promised; ; ) {
      try {
        const received = await orAborted(Promise.resolve(answer), over)
        if (received === undefined) throw stopped()
        requireAnswers([received])
        return received
      } catch (error) {
        if (!isOutage(error) || over.aborted) throw error
      }
      await pause(timers, againMs, over)
      const received = await outage.survive(() => this.#send(asked, token), over)
      answer = received[asked.indexOf(kept)] as Answer | Promise<Answer>
    }
  }

  #take(): readonly Kept[] {
    const { seal } = this.#context
    const group: Kept[] = []
    let weight = 0
    let count = 0
    for (const kept of this.#waiting) {
      if (seal && !seal(kept)) {
        this.#count -= 1
        count += 1
        continue
      }
      weight += this.#weigh(kept)
      if (group.length > 0 && weight > weightMax) break
      group.push(kept)
      count += 1
    }
    this.#waiting.splice(0, count)
    return group
  }

  /** A request that cannot be weighed is sent alone. The call fails with the reason, and no other request with it. */
  #weigh(kept: Kept): number {
    try {
      return this.#context.weigh(kept)
    } catch {
      return weightMax + 1
    }
  }
}

function nextTick(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
