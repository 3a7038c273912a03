// The progress line of a run: rewritten in place on a terminal, otherwise a new line every 15 s.

import type { RoundStatus } from './round.ts'
import type { Tally } from './tally.ts'

const { isTTY } = process.stdout
const everyMs = isTTY ? 500 : 15_000

export class LiveLine {
  readonly #head: string
  readonly #began: number
  readonly #before: { readonly jobs: number; readonly rounds: number }
  #shownAt = performance.now()

  constructor(head: string, { jobs, rounds }: Tally, began: number) {
    this.#head = head
    this.#began = began
    this.#before = { jobs, rounds }
  }

  show({ jobs, faults, stage }: RoundStatus): void {
    const now = performance.now()
    if (now - this.#shownAt < everyMs) return
    this.#shownAt = now
    const elapsed = ((now - this.#began) / 1_000).toFixed()
    const { jobs: before, rounds } = this.#before
    const line = `${this.#head}: ${elapsed} s, round ${rounds + 1} ${stage}, ${before + jobs} jobs, ${faults} faults`
    process.stdout.write(isTTY ? `\r\x1b[K${line}` : `${line}\n`)
  }

  clear(): void {
    if (isTTY) process.stdout.write('\r\x1b[K')
  }
}
