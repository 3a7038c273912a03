// Text for a terminal: colours, aligned columns, wrapped sentences and readable times.
//
// WIDTH. On a terminal no line is wider than it, and no word is broken: sentences wrap at words, and a table that is too wide is
// folded. Elsewhere lines have any width, unless COLUMNS says otherwise. Names and ids are never cut, because the next command
// needs them. Only the last column of a table is.
//
// CONTROLS. `output` is the one way out. It escapes every control character that is not a colour of ours (`printable.ts`).

import { stripVTControlCharacters, styleText } from 'node:util'
import { span } from '../runtime/duration.ts'
import { escapeControls, oneLine } from '../runtime/printable.ts'
import type { ChangedState } from '../store/store.ts'

export { oneLine } from '../runtime/printable.ts'

type Style = 'reset' | 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'blue' | 'magenta' | 'cyan'

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

/** A terminal that is narrower shows broken words: nothing readable fits. */
const narrowest = 40
/** The last column is shown at least this wide; with less room it gets a line of its own. */
const lastColumnMin = 20
const foldIndent = 2

export class Terminal {
  readonly #stream: NodeJS.WriteStream
  readonly now: number

  constructor(stream: NodeJS.WriteStream, now: number) {
    this.#stream = stream
    this.now = now
  }

  /** How many characters a line may have. */
  get width(): number {
    const named = Number(process.env['COLUMNS'] ?? Number.NaN)
    if (Number.isInteger(named) && named > 0) return Math.max(narrowest, named)
    return this.#stream.isTTY ? Math.max(narrowest, this.#stream.columns) : Number.POSITIVE_INFINITY
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

  /**
   * Aligned columns. If they do not fit, each row has several lines: as many columns as fit, then the next ones below, indented.
   * The heading is folded in the same way. The last column is cut to fit.
   */
  table(columns: readonly Column[], rows: readonly (readonly string[])[]): string {
    const last = columns.length - 1
    const widths = columns.map(({ title }, i) => Math.max(title.length, ...rows.map((row) => widthOf(row[i] ?? ''))))
    const isCut = (i: number) => i === last && columns[i]?.align !== 'right'
    const needed = widths.map((width, i) => (isCut(i) ? Math.min(width, lastColumnMin) : width))
    const folds = this.#folds(needed)
    const cell = (cells: readonly string[], i: number, used: number, isEnd: boolean) => {
      const text = isCut(i) ? this.#cut(cells[i] ?? '', this.width - used) : (cells[i] ?? '')
      const gap = ' '.repeat(Math.max(0, (widths[i] ?? 0) - widthOf(text)))
      if (columns[i]?.align === 'right') return gap + text
      return isEnd ? text : text + gap
    }
    const line = (cells: readonly string[]) =>
      folds.map((fold, n) => {
        let text = ' '.repeat(n === 0 ? 0 : foldIndent)
        for (const [at, i] of fold.entries()) {
          if (at > 0) text += '  '
          text += cell(cells, i, widthOf(text), at === fold.length - 1)
        }
        return text.trimEnd()
      })
    const head = line(columns.map(({ title }) => this.paint('bold', title)))
    return [...head, ...rows.flatMap(line)].join('\n')
  }

  /** Which columns are on which line of a row. */
  #folds(needed: readonly number[]): number[][] {
    const folds: number[][] = []
    let used = 0
    for (const [i, width] of needed.entries()) {
      const fold = folds.at(-1)
      if (fold !== undefined && used + 2 + width <= this.width) {
        fold.push(i)
        used += 2 + width
        continue
      }
      used = (folds.length === 0 ? 0 : foldIndent) + width
      folds.push([i])
    }
    return folds
  }

  /** Names and what they stand for, one below the other; long texts wrap beside their name. */
  facts(rows: readonly (readonly [string, string])[]): string {
    const indent = Math.max(...rows.map(([name]) => name.length)) + 2
    return rows
      .map(([name, text]) => {
        const shown = text.split('\n').map((line) => this.wrap(line, indent))
        return this.paint('dim', name.padEnd(indent)) + shown.join(`\n${' '.repeat(indent)}`)
      })
      .join('\n')
  }

  /** `2030-01-31 09:00:00Z (in 3 min)` */
  time(time: Date): string {
    return `${moment(time)} ${this.paint('dim', `(${this.distance(time)})`)}`
  }

  /** `in 3 min`, `5 s ago` */
  distance(time: Date): string {
    const ms = time.getTime() - this.now
    return ms >= 500 ? `in ${span(ms)}` : `${span(-ms)} ago`
  }

  /** Words broken into lines that fit, all but the first indented; unchanged where lines have any width. */
  wrap(text: string, indent: number): string {
    return wrapped(text, Math.max(narrowest / 2, this.width - indent)).join(`\n${' '.repeat(indent)}`)
  }

  /** Every line that is too wide, wrapped and indented as the line is. */
  fit(text: string): string {
    return text
      .split('\n')
      .map((line) => {
        if (widthOf(line) <= this.width) return line
        const indent = line.length - line.trimStart().length
        return ' '.repeat(indent) + this.wrap(line.trimStart(), indent)
      })
      .join('\n')
  }

  /** The one way out: no control character of a payload, name or error reaches the terminal. */
  output(text: string): void {
    this.#stream.write(`${withoutControls(text)}\n`)
  }

  /** Whether a line can be redrawn. */
  get isLive(): boolean {
    return this.#stream.isTTY === true
  }

  /** On a terminal, replaces the line that was drawn before; '' removes it. Elsewhere it does nothing. */
  redraw(line: string): void {
    if (!this.isLive) return
    this.#stream.write(`\r${withoutControls(this.#cut(line, this.width - 1))}\u001b[K`)
  }

  #cut(cell: string, width: number): string {
    if (widthOf(cell) <= width) return cell
    const plain = stripVTControlCharacters(cell)
    return this.paint('dim', `${startOf(plain, width - 1)}…`)
  }
}

/** `2030-01-31 09:00:00Z` */
export function moment(time: Date): string {
  return time
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, 'Z')
}

/** Several lines, with control characters escaped. */
export function lines(text: string): string[] {
  return text.split('\n').map((line) => escapeControls(line.replaceAll('\t', '  ').trimEnd()))
}

export function compactJson(value: unknown): string {
  return oneLine(JSON.stringify(value) ?? '')
}

export function prettyJson(value: unknown): string {
  return lines(JSON.stringify(value, null, 2) ?? 'null').join('\n')
}

/** Lines of whole words. A word that is wider than a line has a line to itself and stays whole. */
export function wrapped(text: string, width: number): string[] {
  if (widthOf(text) <= width) return [text]
  const rows: string[] = []
  for (const word of text.split(' ')) {
    const last = rows.at(-1)
    if (last !== undefined && widthOf(last) + 1 + widthOf(word) <= width) rows[rows.length - 1] = `${last} ${word}`
    else rows.push(word)
  }
  return rows
}

/** The styles of this file, as escape sequences. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: an escape sequence begins with one
const ours = /(\u001b\[(?:0|1|2|22|3[1-6]|39)m)/

function withoutControls(text: string): string {
  return text
    .split(ours)
    .map((part, i) => (i % 2 === 1 ? part : escapeControls(part)))
    .join('')
}

/** In cells of a terminal: signs of East Asia and emoji have two, marks that are drawn over another sign have none. */
export function widthOf(text: string): number {
  let width = 0
  for (const sign of stripVTControlCharacters(text)) width += cellsOf(sign)
  return width
}

function startOf(text: string, width: number): string {
  let start = ''
  let used = 0
  for (const sign of text) {
    used += cellsOf(sign)
    if (used > width) break
    start += sign
  }
  return start
}

function cellsOf(sign: string): number {
  const code = sign.codePointAt(0) ?? 0
  if (code < 0x300) return 1
  if (/^[\p{Mn}\p{Me}\p{Cf}]$/u.test(sign)) return 0
  const isWide =
    (code >= 0x1100 && code <= 0x115f) ||
    (code >= 0x2e80 && code <= 0xa4cf) ||
    (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) ||
    (code >= 0xfe30 && code <= 0xfe6f) ||
    (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0xffe0 && code <= 0xffe6) ||
    (code >= 0x1f300 && code <= 0x1faff) ||
    (code >= 0x20000 && code <= 0x3fffd)
  return isWide ? 2 : 1
}
