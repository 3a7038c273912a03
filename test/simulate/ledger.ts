// The answers that the workers of a process got, in the form of the journals of the torture run: every claim and every
// settlement, once each however often the call was made.

import { isRefused } from '../../src/errors.ts'
import type { ClaimedJob, ClaimRequest, SettleAnswer, SettleRequest } from '../../src/store/store.ts'
import type { Note } from '../torture/journal.ts'
import { effectKey, reservedJob } from '../torture/world.ts'
import type { Call, Observer } from './network.ts'

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] }

export class Ledger implements Observer {
  readonly #now: () => number
  readonly #claims = new Map<Call, Mutable<Note<'claim'>>>()
  readonly #settles = new Map<string, Mutable<Note<'settle'>>>()
  /** Which claim a fence comes from. */
  readonly #claimOf = new Map<string, string>()

  /** The time must differ between notes, so that they have an order. */
  constructor(now: () => number) {
    this.#now = now
  }

  get notes(): Note[] {
    return [...this.#claims.values(), ...this.#settles.values()]
  }

  sent(call: Call): void {
    const { verb, args, caller } = call
    const unknown = { at: this.#now(), answer: null, answeredAt: null, refused: null }
    if (verb === 'claim') {
      const { worker, leaseMs } = args[0] as ClaimRequest
      if (worker.startsWith(`${caller.name}#`))
        this.#claims.set(call, { verb, asked: { worker, queues: '*', leaseMs }, ...unknown })
    } else if (verb === 'settle') {
      for (const request of args[0] as SettleRequest[]) {
        const worker = this.#claimOf.get(request.fence)
        if (worker === undefined || this.#settles.has(keyOf(request))) continue
        this.#settles.set(keyOf(request), { verb, asked: toAsked(request, worker), ...unknown })
      }
    }
  }

  committed(): void {}

  answered(call: Call, answer: unknown): void {
    const claim = this.#claims.get(call)
    if (claim) {
      claim.answer = (answer as ClaimedJob[]).map(({ id, fence, attempt }) => ({ id, fence, attempt }))
      claim.answeredAt = this.#now()
      for (const { fence } of claim.answer) this.#claimOf.set(fence, claim.asked.worker)
    } else if (call.verb === 'settle') {
      ;(call.args[0] as SettleRequest[]).forEach((request, i) => {
        this.#settled(request, (answer as SettleAnswer[])[i] as SettleAnswer)
      })
    }
  }

  #settled(request: SettleRequest, answer: SettleAnswer): void {
    const note = this.#settles.get(keyOf(request))
    if (!note || note.answeredAt !== null) return
    if (isRefused(answer) && answer.refused === 'STORE_UNAVAILABLE') return
    note.answeredAt = this.#now()
    if (answer === 'lost') note.refused = 'LEASE_LOST'
    else if (isRefused(answer)) note.refused = answer.refused
    else if ('failed' in answer) note.refused = answer.failed.refused
    else note.answer = { state: answer.state }
  }
}

/** One settlement of one hold. */
function keyOf({ id, fence, settlement }: SettleRequest): string {
  return `${id} ${fence} ${settlement.as}`
}

function toAsked({ id, fence, settlement }: SettleRequest, worker: string): Note<'settle'>['asked'] {
  const effects = 'effects' in settlement ? settlement.effects : null
  const key = effects?.put[0]?.key
  const ending = 'ending' in settlement ? settlement.ending : undefined
  return {
    ...{ id, fence, worker, as: settlement.as, deletes: false },
    result: settlement.as === 'done' && settlement.result !== null ? JSON.parse(settlement.result) : null,
    tag: key === undefined ? null : key.slice(effectKey('').length),
    hasBadEffect: effects?.enqueue.some((job) => job.id === reservedJob.id) ?? false,
    ...(ending && { ending }),
  }
}
