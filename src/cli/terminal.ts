// Text for a terminal: colours, aligned columns and readable times. Control sequences in a payload or an error message are
// removed, so that the terminal does not execute them.

import { stripVTControlCharacters, styleText } from 'node:util'
import { span } from '../runtime/duration.ts'
import type { ChangedState } from '../store/store.ts'

type Style = Parameters<typeof styleText>[0]

export interface Column {
  readonly title: string
  readonly align?: 'right'
}

const stateStyles: Readonly<Record<ChangedState, Style>> = {
  held: 'magenta',
  scheduled: 'blue',
  ready: 'reset',
  running: 'cyan',
  done: 'green',
  dead: 'red',
  cancelled: 'yellow',
  deleted: 'dim',
}

export class Terminal {
  readonly #stream: NodeJS.WriteStream
  readonly now: number

  constructor(stream: NodeJS.WriteStream, now: number) {
    this.#stream = stream
    this.now = now
  }

  /** Styled on a terminal; unchanged elsewhere, and with NO_COLOR. */
  paint(style: Style, text: string): string {
    return styleText(style, text, { stream: this.#stream })
  }

  state(state: ChangedState): string {
    return this.paint(stateStyles[state], state)
  }

  /** A count; zero is shown as a dim dot. */
  count(count: number, style: Style = 'reset'): string {
    return count === 0 ? this.paint('dim', '·') : this.paint(style, count.toLocaleString('en'))
  }

  /** Aligned columns. On a terminal the last one is cut to fit. */
  table(columns: readonly Column[], rows: readonly (readonly string[])[]): string {
    const widths = columns.map(({ title }, i) => Math.max(title.length, ...rows.map((row) => widthOf(row[i] ?? ''))))
    const before = widths.slice(0, -1).reduce((sum, width) => sum + width + 2, 0)
    const width = this.#stream.isTTY ? Math.max(20, this.#stream.columns - before) : Number.POSITIVE_INFINITY
    const line = (cells: readonly string[]) =>
      cells
        .map((cell, i) => {
          const isLast = i === columns.length - 1
          const gap = ' '.repeat(Math.max(0, (widths[i] ?? 0) - widthOf(cell)))
          if (columns[i]?.align === 'right') return gap + cell
          return isLast ? this.#cut(cell, width) : cell + gap
        })
        .join('  ')
    const head = line(columns.map(({ title }) => this.paint('bold', title)))
    return [head, ...rows.map(line)].join('\n')
  }

  /** `2030-01-31 09:00:00Z (in 3 min)` */
  time(time: Date): string {
    const text = time
      .toISOString()
      .replace('T', ' ')
      .replace(/\.\d+Z$/, 'Z')
    return `${text} ${this.paint('dim', `(${this.distance(time)})`)}`
  }

  /** `in 3 min`, `5 s ago` */
  distance(time: Date): string {
    const ms = time.getTime() - this.now
    return ms >= 500 ? `in ${span(ms)}` : `${span(-ms)} ago`
  }

  /** On a terminal, words broken into lines that fit, all but the first indented; unchanged elsewhere. */
  wrap(text: string, indent: number): string {
    if (!this.#stream.isTTY) return text
    const width = Math.max(40, this.#stream.columns - indent)
    const rows: string[] = []
    for (const word of text.split(' ')) {
      const last = rows.at(-1)
      if (last !== undefined && last.length + 1 + word.length <= width) rows[rows.length - 1] = `${last} ${word}`
      else rows.push(word)
    }
    return rows.join(`\n${' '.repeat(indent)}`)
  }

  /** Whether a line can be redrawn. */
  get isLive(): boolean {
    return this.#stream.isTTY === true
  }

  /** On a terminal, replaces the line that was drawn before; '' removes it. Elsewhere it does nothing. */
  redraw(line: string): void {
    if (!this.isLive) return
    this.#stream.write(`\r${this.#cut(line, Math.max(20, this.#stream.columns - 1))}\u001b[K`)
  }

  #cut(cell: string, width: number): string {
    if (widthOf(cell) <= width) return cell
    const plain = stripVTControlCharacters(cell)
    return this.paint('dim', `${plain.slice(0, width - 1)}…`)
  }
}

/** One line, with control characters replaced by spaces. */
export function oneLine(text: string): string {
  return text.replace(/[\p{Cc}\u2028\u2029]+/gu, ' ').trim()
}

/** Several lines, each without control characters. */
export function lines(text: string): string[] {
  return text.split('\n').map((line) => line.replace(/\p{Cc}/gu, ' ').trimEnd())
}

export function compactJson(value: unknown): string {
  return oneLine(JSON.stringify(value) ?? '')
}

export function prettyJson(value: unknown): string {
  return lines(JSON.stringify(value, null, 2) ?? 'null').join('\n')
}

function widthOf(text: string): number {
  return [...stripVTControlCharacters(text)].length
}
