// The output of a batch: one line that is redrawn in a terminal (without one, a plain line a second), and a summary.

import { styleText } from 'node:util'
import type { BatchProgress } from '../../src/index.ts'

type Style = Parameters<typeof styleText>[0]

const out = process.stdout
/** How often the line is drawn. */
export const everyMs = out.isTTY ? 80 : 1_000

const parts = [
  ['done', 'green', '█'],
  ['dead', 'red', '█'],
  ['running', 'cyan', '▒'],
  ['waiting', 'dim', '░'],
] as const

export class Line {
  draw(progress: BatchProgress): void {
    const line = lineOf(progress)
    out.write(out.isTTY ? `\r\x1b[?25l${line}\x1b[K` : `${line}\n`)
  }

  /** Leaves the line as it is and shows the cursor again. */
  end(): void {
    if (out.isTTY) out.write('\x1b[?25h\n\n')
  }
}

export function summary({ outcomes, warnings, costs, dead, round, startedAt, finishedAt }: BatchProgress): string {
  const seconds = (Number(finishedAt) - Number(startedAt)) / 1_000
  const rows = [
    ['outcomes', tally(outcomes)],
    ['warnings', tally(warnings)],
    ['costs', tally(costs)],
    ['dead', String(dead)],
    ['rounds', `${round}, in ${seconds.toFixed(1)} s`],
  ]
  return rows.map(([name = '', text]) => `  ${paint('dim', name.padEnd(10))}${text}`).join('\n')
}

function lineOf(progress: BatchProgress): string {
  const { total, done, dead, running, rate, remainingMs } = progress
  const width = Math.max(10, Math.min(40, (out.columns || 80) - 52))
  const bar = parts.map(([name, style, sign]) =>
    paint(style, sign.repeat(Math.round((width * progress[name]) / Math.max(1, total)))),
  )
  const left = remainingMs ? `${Math.ceil(remainingMs / 1_000)} s left` : ''
  const texts = [
    paint('bold', `${Math.floor(((done + dead) / Math.max(1, total)) * 100)} %`.padStart(5)),
    `${done + dead}/${total}`,
    paint('cyan', `${running} running`),
    ...(dead > 0 ? [paint('red', `${dead} dead`)] : []),
    ...(rate === null ? [] : [paint('dim', `${rate.toFixed(0)}/s`)]),
    paint('dim', left),
  ]
  return `  ${bar.join('')} ${texts.join('  ')}`
}

function tally(counts: Readonly<Record<string, number>>): string {
  const entries = Object.entries(counts).map(([name, count]) => `${name} ${count.toLocaleString('en')}`)
  return entries.join(', ') || 'none'
}

function paint(style: Style, text: string): string {
  return styleText(style, text, { stream: out })
}
