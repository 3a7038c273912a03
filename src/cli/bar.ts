// A batch as one line: a bar of its items by state, the share that has ended, the rate, and the estimated time left.

import type { BatchProgress } from '../batch/progress.ts'
import type { BatchState } from '../job/batch.ts'
import { span } from '../runtime/duration.ts'
import { oneLine, type Terminal } from './terminal.ts'

const parts = [
  ['done', 'green', '█'],
  ['dead', 'red', '█'],
  ['cancelled', 'yellow', '█'],
  ['running', 'cyan', '▒'],
  ['waiting', 'dim', '░'],
] as const

const stateStyles = {
  open: 'blue',
  queued: 'reset',
  running: 'cyan',
  paused: 'yellow',
  done: 'green',
  cancelled: 'yellow',
} as const satisfies Record<BatchState, string>

export function batchState(state: BatchState, terminal: Terminal): string {
  return terminal.paint(stateStyles[state], state)
}

/** `[██████▒▒░░░░]  40 %  4 of 10  2.1/s  3 s left` */
export function barLine(progress: BatchProgress, terminal: Terminal, width = 30): string {
  const { state, total, done, dead, cancelled, rate, remainingMs } = progress
  const ended = done + dead + cancelled
  return [
    bar(progress, terminal, width),
    `${percent(progress)} %`.padStart(5),
    `${ended.toLocaleString('en')} of ${total.toLocaleString('en')}`,
    ...(dead > 0 ? [terminal.paint('red', `${dead.toLocaleString('en')} dead`)] : []),
    ...(rate === null ? [] : [`${speed(rate)}/s`]),
    ...(remainingMs === null || remainingMs === 0 ? [] : [`${span(remainingMs)} left`]),
    ...(state === 'running' ? [] : [batchState(state, terminal)]),
  ].join('  ')
}

/** The share of items that have ended. */
export function percent({ state, total, done, dead, cancelled }: BatchProgress): number {
  if (total === 0) return state === 'done' ? 100 : 0
  return Math.floor(((done + dead + cancelled) / total) * 100)
}

/** Every part that is not empty has at least one cell, while cells are left. */
export function bar(progress: BatchProgress, terminal: Terminal, width: number): string {
  const { total } = progress
  if (total === 0) return terminal.paint('dim', '░'.repeat(width))
  let left = width
  let items = total
  const cells = parts.map(([name, style, sign]) => {
    const count = progress[name]
    const size = count === 0 ? 0 : Math.max(1, Math.round((left * count) / items))
    const shown = Math.min(left, size)
    left -= shown
    items -= count
    return shown === 0 ? '' : terminal.paint(style, sign.repeat(shown))
  })
  return cells.join('')
}

/** `saved 12, duplicate 3`: the largest first, without zeros. */
export function tally(counts: Readonly<Record<string, number>>): string {
  return Object.entries(counts)
    .filter(([, count]) => count > 0)
    .toSorted(([, a], [, b]) => b - a)
    .map(([name, count]) => `${oneLine(name)} ${amount(count)}`)
    .join(', ')
}

function amount(count: number): string {
  return count.toLocaleString('en', { maximumFractionDigits: 4 })
}

function speed(rate: number): string {
  return rate.toLocaleString('en', { maximumFractionDigits: rate < 10 ? 1 : 0 })
}
