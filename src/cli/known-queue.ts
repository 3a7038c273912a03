// A mistyped name must not become a queue: the store creates a queue when it is first named, and keeps it. So a command that
// changes a queue refuses a name that the store does not know. A command that adds jobs says that it creates one. A command that
// reads says that there is none.

import type { QueueInfo } from '../client/queues.ts'
import { isHoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import type { Answer, Call } from './command.ts'

/** The queue, or the answer that there is none. */
export async function knownQueue(holdfast: Holdfast, name: string): Promise<QueueInfo | Answer> {
  const infos = await holdfast.queues()
  return infos.find((info) => info.name === name) ?? noQueue(name, infos)
}

export function isAnswer(found: QueueInfo | Answer): found is Answer {
  return 'isMissing' in found
}

/** For a command that only reads: a note, because a queue may have no job yet, and a script goes on. */
export async function noteUnknownQueue(holdfast: Holdfast, name: string, note: Call['note']): Promise<void> {
  const infos = await holdfast.queues()
  if (!infos.some((info) => info.name === name))
    note(`There is no queue ${name}${similarTo(name, infos)}. holdfast queues lists them.`)
}

/** For a queue that gets its first job now. A store without queues is new, and there is nothing to mistype in it. */
export async function noteNewQueue(holdfast: Holdfast, name: string, note: Call['note']): Promise<void> {
  const infos = await queuesToRead(holdfast)
  if (infos.length > 0 && !infos.some((info) => info.name === name))
    note(`creating a new queue ${name}${similarTo(name, infos)}`)
}

/** A role that only produces may not read queues. It enqueues without the note. */
async function queuesToRead(holdfast: Holdfast): Promise<readonly QueueInfo[]> {
  try {
    return await holdfast.queues()
  } catch (error) {
    if (isHoldfastError(error, 'STORE_UNAVAILABLE') && error.facts['code'] === '42501') return []
    throw error
  }
}

function noQueue(name: string, infos: readonly QueueInfo[]): Answer {
  const text = `There is no queue ${name}${similarTo(name, infos)}. holdfast queues lists them; nothing was changed.`
  return { data: null, text, isMissing: true }
}

function similarTo(name: string, infos: readonly QueueInfo[]): string {
  const near = infos.map((info) => ({ name: info.name, distance: distanceOf(name, info.name) }))
  const [best] = near.filter(({ distance }) => distance <= 2).toSorted((a, b) => a.distance - b.distance)
  return best === undefined ? '' : ` (there is ${best.name})`
}

/** How many letters must be added, left out, exchanged or swapped with their neighbour to make one name of the other. */
function distanceOf(a: string, b: string): number {
  if (Math.abs(a.length - b.length) > 2) return Number.POSITIVE_INFINITY
  const at = (row: readonly number[] | undefined, i: number) => row?.[i] ?? Number.POSITIVE_INFINITY
  let before: number[] = []
  let row = Array.from({ length: b.length + 1 }, (_, i) => i)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const change = a[i - 1] === b[j - 1] ? 0 : 1
      const swap = a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1] ? at(before, j - 2) + 1 : Number.POSITIVE_INFINITY
      next.push(Math.min(at(row, j) + 1, at(next, j - 1) + 1, at(row, j - 1) + change, swap))
    }
    before = row
    row = next
  }
  return at(row, b.length)
}
