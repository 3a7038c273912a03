// The output of a benchmark, and how it is printed: sections of lines. A line has the rounds of each of its columns.

import { median, ratios, spreadPercent } from './statistics.ts'

export type Unit = 'jobs/s' | 'ms' | 'µs' | 'bytes' | 'count' | 'ratio' | '1/s'

export interface Line {
  readonly name: string
  readonly unit: Unit
  /** Column by column, one figure a round. */
  readonly rounds: Readonly<Record<string, readonly number[]>>
  readonly annotation?: string
}

export interface Section {
  readonly title: string
  readonly note?: string
  readonly columns: readonly string[]
  /** Units of columns that differ from the unit of their line. */
  readonly units?: Readonly<Record<string, Unit>>
  /** The columns to divide, for rates and for times alike. */
  readonly ratio?: { readonly of: string; readonly to: string }
  readonly lines: readonly Line[]
}

export function sectionText({ title, note, columns, units = {}, ratio, lines }: Section): string {
  const head = ['', '', ...columns.flatMap((column) => [column, '']), ...(ratio ? ['ratio', ''] : []), '', '']
  const rows = lines.map(({ name, unit, rounds, annotation = '' }) => [
    `  ${name}`,
    unit === 'ratio' || unit === 'count' ? '' : unit,
    ...columns.flatMap((column) => figureCells(rounds[column], units[column] ?? unit)),
    ...(ratio ? ratioCells(rounds[ratio.of], rounds[ratio.to]) : []),
    ...['', annotation],
  ])
  const text = [title, ...(rows.length > 0 ? aligned([head, ...rows]) : [])]
  if (note) text.push(...wrapped(note, 110).map((line) => `  ${line}`))
  return text.join('\n')
}

/** For `--json`: every round, and the medians. */
export function sectionData({ title, note, columns, units, ratio, lines }: Section) {
  return {
    title,
    ...(note && { note }),
    ...(units && { units }),
    lines: lines.map(({ name, unit, rounds, annotation }) => {
      const known = columns.filter((column) => rounds[column])
      const both = ratio && rounds[ratio.of] && rounds[ratio.to]
      return {
        name,
        unit,
        medians: Object.fromEntries(known.map((column) => [column, median(rounds[column] ?? [])])),
        ...(both && { ratio: median(ratios(rounds[ratio.of] ?? [], rounds[ratio.to] ?? [])) }),
        rounds,
        ...(annotation && { annotation }),
      }
    }),
  }
}

function figureCells(rounds: readonly number[] | undefined, unit: Unit): string[] {
  if (!rounds) return ['–', '']
  const seen = rounds.filter((each) => !Number.isNaN(each))
  if (seen.length === 0) return ['not seen', '']
  const percent = spreadPercent(seen)
  return [figure(median(seen), unit), percent === null ? '' : `±${percent} %`]
}

function ratioCells(over: readonly number[] | undefined, under: readonly number[] | undefined): string[] {
  if (!over || !under) return ['–', '']
  const values = ratios(over, under)
  const range = `${Math.min(...values).toFixed(2)} – ${Math.max(...values).toFixed(2)}`
  return [median(values).toFixed(2), values.length > 1 ? range : '']
}

function figure(value: number, unit: Unit): string {
  if (unit === 'jobs/s')
    return value >= 1_000 ? `${(value / 1_000).toFixed(value < 10_000 ? 2 : 1)}k` : value.toFixed(0)
  if (unit === 'ratio') return value.toFixed(2)
  if (value !== 0 && value < 1) return value.toPrecision(2)
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)
}

/** The first two columns are left-aligned, figures right-aligned, each followed by its spread. */
function aligned(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, i) => Math.max(...rows.map((row) => (row[i] ?? '').length)))
  return rows.map((row) =>
    row
      .map((cell, i) => {
        const width = widths[i] as number
        const isFigure = i >= 2 && i % 2 === 0
        return isFigure ? `  ${cell.padStart(width)}` : cell.padEnd(width)
      })
      .join(' ')
      .trimEnd(),
  )
}

function wrapped(text: string, width: number): string[] {
  const lines = ['']
  for (const word of text.split(/\s+/)) {
    const last = lines[lines.length - 1] as string
    if (last !== '' && last.length + 1 + word.length > width) lines.push(word)
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`
  }
  return lines
}
