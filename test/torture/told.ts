// What a watcher has written down.

import { existsSync, readFileSync } from 'node:fs'
import type { Told } from './judge/evidence.ts'

export type WatchLine =
  /** From then on it saw everything. */
  | { readonly since: number }
  /** Its cursor was refused: it starts anew. */
  | { readonly refused: number }
  | { readonly id: string; readonly state: string; readonly cursor: string }

export function readTold(path: string): Told | null {
  if (!existsSync(path)) return null
  const text = readFileSync(path, 'utf8')
  let told = { since: Number.POSITIVE_INFINITY, refusals: 0 }
  const changes: { readonly id: string; readonly state: string }[] = []
  for (const line of text.slice(0, text.lastIndexOf('\n') + 1).split('\n')) {
    if (line === '') continue
    const read = JSON.parse(line) as WatchLine
    if ('since' in read) told = { ...told, since: read.since }
    else if ('refused' in read) told = { since: Number.POSITIVE_INFINITY, refusals: told.refusals + 1 }
    else changes.push(read)
  }
  return { ...told, changes }
}
