// The output: one line that is redrawn in a terminal (without one, a plain line a second), and a table at the end.

import { styleText } from 'node:util'
import type { Progress, Row } from './run.ts'

type Style = Parameters<typeof styleText>[0]

const out = process.stdout
const windowMs = 2_000
/** How often the line is drawn. */
export const everyMs = out.isTTY ? 80 : 1_000

export class ProgressLine {
  readonly #samples: { readonly at: number; readonly finished: number }[] = []
  readonly #startedAt = performance.now()

  show(progress: Progress): void {
    const rate = this.#rate(progress.finished)
    const seconds = (performance.now() - this.#startedAt) / 1_000
    if (out.isTTY) out.write(`\r\x1b[?25l${fitted(progress, rate, seconds)}\x1b[K`)
    else out.write(`${plain(progress, rate)}\n`)
  }

  /** Clears the line and shows the cursor again. */
  end(): void {
    if (out.isTTY) out.write('\r\x1b[K\x1b[?25h')
  }

  /** Jobs finished per second, over the last two seconds. */
  #rate(finished: number): number {
    const now = performance.now()
    this.#samples.push({ at: now, finished })
    while (this.#samples.length > 2 && (this.#samples[0]?.at ?? now) < now - windowMs) this.#samples.shift()
    const first = this.#samples[0]
    return first && now - first.at > 100 ? Math.max(0, ((finished - first.finished) * 1_000) / (now - first.at)) : 0
  }
}

/** Fits the line into the width of the terminal; the least important parts are left out first. */
function fitted(progress: Progress, rate: number, seconds: number): string {
  const { finished, total, running, ready, scheduled, dead, cancelled } = progress
  const share = total === 0 ? 0 : finished / total
  const parts: [Style, string][] = [
    ['bold', `${String(Math.floor(share * 100)).padStart(3)} %`],
    ['reset', `${String(finished).padStart(String(total).length)}/${total}`],
    ['cyan', `${running} running`],
    ['reset', `${ready} ready`],
    ['blue', `${scheduled} scheduled`],
    ['red', `${dead} dead`],
    ['dim', `${rate.toFixed(0)}/s`],
    ['yellow', `${cancelled} cancelled`],
    ['dim', `${seconds.toFixed(0)} s`],
  ]
  const width = (out.columns || 80) - 4 // space for the ^C that a terminal echoes
  const lengthOf = () => parts.reduce((sum, [, text]) => sum + 2 + text.length, 0)
  while (parts.length > 1 && 2 + 16 + lengthOf() > width) parts.pop()
  const barWidth = Math.max(4, Math.min(30, width - 2 - lengthOf()))
  return `  ${bar(share, barWidth)}${parts.map(([style, text]) => `  ${paint(style, text)}`).join('')}`
}

const eighths = ['', '▏', '▎', '▍', '▌', '▋', '▊', '▉']

function bar(share: number, width: number): string {
  const filled = Math.floor(share * width * 8)
  const full = '█'.repeat(Math.floor(filled / 8)) + (eighths[filled % 8] ?? '')
  return paint('green', full) + paint('dim', '·'.repeat(width - full.length))
}

function plain({ finished, total, done, dead, cancelled, running, ready, scheduled }: Progress, rate: number): string {
  const ended = `${done} done, ${dead} dead, ${cancelled} cancelled`
  const left = `${running} running, ${ready} ready, ${scheduled} scheduled`
  return `  ${finished} of ${total} finished: ${ended}; ${left}; ${rate.toFixed(0)}/s`
}

const columns: readonly { readonly title: string; readonly of: (row: Row) => number; readonly style: Style }[] = [
  { title: 'jobs', of: (row) => row.jobs, style: 'reset' },
  { title: 'done', of: (row) => row.done, style: 'green' },
  { title: 'dead', of: (row) => row.dead, style: 'red' },
  { title: 'cancelled', of: (row) => row.cancelled, style: 'yellow' },
  { title: 'attempts', of: (row) => row.attempts, style: 'reset' },
  { title: 'refused', of: (row) => row.refused, style: 'cyan' },
]

export function tableText(rows: readonly Row[]): string {
  const fateWidth = Math.max(...rows.map((row) => row.fate.length))
  const descriptionWidth = Math.max(...rows.map((row) => row.description.length))
  const label = (fate: string, description: string) =>
    `  ${paint('bold', fate.padEnd(fateWidth))}  ${paint('dim', description.padEnd(descriptionWidth))}`
  const number = (value: number, title: string, style: Style) =>
    paint(value === 0 ? 'dim' : style, (value === 0 ? '·' : String(value)).padStart(title.length + 2))
  const line = (left: string, of: (column: (typeof columns)[number]) => number) =>
    left + columns.map((column) => number(of(column), column.title, column.style)).join('')
  const head = columns.map(({ title }) => `  ${title}`).join('')
  const rule = paint('dim', '─'.repeat(2 + fateWidth + descriptionWidth + head.length))
  return [
    `  ${paint('dim', 'fate'.padEnd(fateWidth + 2 + descriptionWidth) + head)}`,
    `  ${rule}`,
    ...rows.map((row) => line(label(row.fate, row.description), (column) => column.of(row))),
    `  ${rule}`,
    line(label('total', ''), ({ of }) => rows.reduce((sum, row) => sum + of(row), 0)),
  ].join('\n')
}

export function paint(style: Style, text: string): string {
  return styleText(style, text, { stream: out })
}
