// The charts of a set of results, by the names of their files.

import { median } from '../statistics.ts'
import { type Bar, barChart, lineChart } from './chart.ts'
import { type ContenderName, contenderOf } from './contenders.ts'
import { documentedRecoveryS, type Figure, figures, figureText, inUnit } from './figures.ts'
import { figuresOf, type Result, type Results } from './results.ts'

const windowS = 10

export function charts(results: Results): Record<string, string> {
  const drawn: Record<string, string> = {}
  for (const figure of Object.values<Figure>(figures)) {
    const result = results[figure.workload]
    if (!result || figure.id === 'costs') continue
    if (figure.id === 'snapshot') drawn[figure.id] = snapshotChart(figure, result)
    else drawn[figure.id] = barsOf(figure, result)
  }
  return drawn
}

function barsOf(figure: Figure, result: Result): string {
  const isStacked = figure.id === 'processor'
  const column = figure.columns[0] as Figure['columns'][number]
  const bars = namesOf(figure, result).flatMap((name): Bar[] => {
    if (isStacked) return stackedBar(figure, result, name)
    const rounds = figuresOf(result, column.measure, name).map((value) => inUnit(value, column.unit))
    const documentedS = figure.id === 'recovery' ? documentedRecoveryS[name] : undefined
    if (rounds.length === 0 && documentedS === undefined) return []
    const value = rounds.length > 0 ? median(rounds) : (documentedS as number)
    return [
      {
        ...labelOf(name),
        values: [value],
        ...(rounds.length > 1 && { span: [Math.min(...rounds), Math.max(...rounds)] }),
        text: `${figureText(value, column.unit)}${column.unit === 'jobs/s' || value >= 120 ? '' : ` ${column.unit}`}`,
        isDocumented: rounds.length === 0,
      },
    ]
  })
  const segments = isStacked ? figure.columns.map(({ name }) => name) : []
  return barChart({
    title: figure.title,
    subtitle: subtitleOf(figure, result),
    bars,
    isLogarithmic: figure.id === 'recovery',
    segments,
  })
}

function stackedBar(figure: Figure, result: Result, name: ContenderName): Bar[] {
  const parts = figure.columns.map(({ measure }) => figuresOf(result, measure, name))
  if (parts.some((rounds) => rounds.length === 0)) return []
  const values = parts.map((rounds) => median(rounds))
  const total = values.reduce((sum, value) => sum + value, 0)
  return [{ ...labelOf(name), values, text: `${figureText(total, 'µs')} µs` }]
}

function snapshotChart(figure: Figure, result: Result): string {
  const lines = Object.entries(result.series ?? {}).map(([name, counts]) => ({
    ...labelOf(name as ContenderName),
    values: windows(counts),
  }))
  return lineChart({
    title: figure.title,
    subtitle: subtitleOf(figure, result),
    lines,
    step: (index) => `${((index + 1) * result.sizes.heldMs) / 1_000 / (lines[0]?.values.length ?? 1)} s`,
    text: (value) => `${value / 1_000}k`,
  })
}

/** Means over ten seconds each. */
function windows(counts: readonly number[]): number[] {
  const size = Math.min(windowS, Math.max(1, Math.floor(counts.length / 9)))
  return Array.from({ length: Math.floor(counts.length / size) }, (_, i) => {
    const part = counts.slice(i * size, (i + 1) * size)
    return part.reduce((sum, count) => sum + count, 0) / part.length
  })
}

function subtitleOf({ id, columns: [column] }: Figure, { sizes }: Result): string {
  const rounds = `median of ${sizes.rounds} rounds, and their span`
  const jobs = sizes.jobs.toLocaleString('en')
  const subtitles: Readonly<Record<string, string>> = {
    bulk: `jobs a second, more is better; ${jobs} jobs; ${rounds}`,
    drain: `jobs a second, more is better; ${jobs} jobs; ${rounds}`,
    'pick-up': `milliseconds at the median, less is better; ${rounds}`,
    backlog: 'jobs a second while a million wait, more is better',
    snapshot: 'jobs a second, means of ten seconds, more is better',
    recovery: `by default settings, less is better, on a logarithmic scale; pale: by its documentation, not measured`,
    processor: 'microseconds, less is better; SQLite runs inside the client',
  }
  return subtitles[id] ?? `${column?.unit === 'jobs/s' ? 'jobs a second, more is better' : column?.unit}; ${rounds}`
}

export function namesOf({ leaveOut = [] }: Figure, { contenders: names }: Result): ContenderName[] {
  return names.filter((name) => !leaveOut.includes(name))
}

function labelOf(name: ContenderName): Pick<Bar, 'label' | 'kind'> {
  const { label, family } = contenderOf(name)
  return { label, kind: family === 'holdfast' ? 'ours' : family === 'raw' ? 'raw' : 'peer' }
}
