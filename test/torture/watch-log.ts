// The changes that a watcher has written to its file.

import { existsSync, readFileSync } from 'node:fs'
import type { WatchLog } from './judge/evidence.ts'

export type WatchLine =
  /** The watch is complete from this time on. */
  | { readonly since: number }
  /** Its cursor was refused, so it started again without one. */
  | { readonly refused: number }
  | { readonly id: string; readonly state: string; readonly cursor: string }

export function readWatchLog(path: string): WatchLog | null {
  if (!existsSync(path)) return null
  const text = readFileSync(path, 'utf8')
  let watch = { since: Number.POSITIVE_INFINITY, refusals: 0 }
  const changes: { readonly id: string; readonly state: string }[] = []
  for (const line of text.slice(0, text.lastIndexOf('\n') + 1).split('\n')) {
    if (line === '') continue
    const read = JSON.parse(line) as WatchLine
    if ('since' in read) watch = { ...watch, since: read.since }
    else if ('refused' in read) watch = { since: Number.POSITIVE_INFINITY, refusals: watch.refusals + 1 }
    else changes.push(read)
  }
  return { ...watch, changes }
}
