// `docs/benchmarks.md`: the page is made from the results, so that no figure can be from another run. The text is in prose.ts.
// Where a peer is ahead, the page says so by itself.

import { median, spreadPercent } from '../statistics.ts'
import { charts, namesOf } from './charts.ts'
import { type ContenderName, contenderOf } from './contenders.ts'
import {
  type Column,
  documentedRecoveryS,
  type Figure,
  type FigureName,
  figures,
  figureText,
  inUnit,
} from './figures.ts'
import { peerAims } from './peer-aims.ts'
import { prose, whyAhead } from './prose.ts'
import { figuresOf, type Result, type Results } from './results.ts'

export function page(results: Results): string {
  const all = Object.values(results)
  const [any] = all
  if (!any) throw new Error('There are no results: npm run bench -- peers')
  const drawn = charts(results)
  const shown = (Object.keys(figures) as FigureName[]).filter((name) => results[figures[name].workload])
  return `${[
    '# Benchmarks',
    prose.opening,
    aheadText(results, shown),
    ...shown.flatMap((name) => section(name, results, drawn)),
    '## Aims',
    prose.aims,
    aimsTable(results),
    prose.missedAims,
    '## Settings',
    prose.settings,
    settingsTable(all),
    '## Machine and versions',
    machineText(all),
    '## What these figures do not show',
    prose.limits,
    '## Run it yourself',
    prose.rerun,
  ].join('\n\n')}\n`
}

function section(name: FigureName, results: Results, drawn: Readonly<Record<string, string>>): string[] {
  const figure: Figure = figures[name]
  const result = results[figure.workload] as Result
  return [
    `## ${heading(figure)}`,
    prose.figures[name],
    ...elsewhere(result, Object.values(results)),
    ...(drawn[figure.id] === undefined ? [] : [`![${figure.title}](benchmarks/${figure.id}.svg)`]),
    figureTable(figure, result),
  ]
}

/** A note for a section that was measured on another machine than most of the page. */
function elsewhere(result: Result, all: readonly Result[]): string[] {
  const machine = machineOf(result)
  if (machine === usualMachine(all)) return []
  const day = result.takenAt.slice(0, 10)
  return [
    `Measured on another machine than the rest, on ${day}: ${machine}. Compare figures of this section only with each other.`,
  ]
}

function machineOf({ machine: { cpu, cores, memoryGiB } }: Result): string {
  return `${cpu}, ${cores} cores, ${memoryGiB} GiB`
}

/** The machine on which most results were measured. */
function usualMachine(all: readonly Result[]): string {
  const machines = all.map(machineOf)
  const count = (machine: string) => machines.filter((each) => each === machine).length
  return machines.toSorted((a, b) => count(b) - count(a))[0] as string
}

function heading({ title }: Figure): string {
  return title.split(':')[0] as string
}

function figureTable(figure: Figure, result: Result): string {
  const rows = namesOf(figure, result).flatMap((name) => {
    const cells = figure.columns.map((column) => cell(figure, column, result, name))
    return cells.every((text) => text === '–') ? [] : [[contenderOf(name).label, ...cells]]
  })
  const heads = figure.columns.map(({ name, unit }) => (unit === 'ratio' || unit === name ? name : `${name}, ${unit}`))
  return table(['', ...heads], rows)
}

function cell(figure: Figure, { measure, unit }: Column, result: Result, name: ContenderName): string {
  const rounds = figuresOf(result, measure, name).map((value) => inUnit(value, unit))
  if (rounds.length > 0) {
    const percent = spreadPercent(rounds)
    const around = percent === null ? '' : ` ± ${percent} %`
    return `${figureText(median(rounds), unit)}${around}`
  }
  if (figure.id !== 'recovery' || result.rounds[measure]?.[name] === undefined) return '–'
  const documentedS = documentedRecoveryS[name]
  return documentedS === undefined
    ? 'not in time'
    : `${figureText(documentedS, 's')} by its documentation; not recovered before the round ended`
}

/** By how much two runs of the same code differ on a quiet machine. */
const noise = 1.05

/** Every column in which a peer is ahead of Holdfast, and why. */
function aheadText(results: Results, shown: readonly FigureName[]): string {
  const lines = shown.flatMap((name) => {
    const figure: Figure = figures[name]
    const result = results[figure.workload] as Result
    return figure.columns.flatMap((column) => {
      const of = (family: boolean) => best(figure, column, result, family)
      const [ours, theirs] = [of(true), of(false)]
      if (!ours || !theirs) return []
      const isAhead = column.isLess ? theirs.value * noise < ours.value : theirs.value > ours.value * noise
      if (!isAhead) return []
      const { label } = contenderOf(theirs.name)
      const text = (value: number) =>
        `${figureText(value, column.unit)}${column.unit === 'ratio' ? '' : ` ${column.unit}`}`
      const why = whyAhead[`${name} ${column.measure}`]
      const beside = `${text(theirs.value)}, ${contenderOf(ours.name).label} ${text(ours.value)}`
      return [`- **${heading(figure)}, ${column.name}**: ${label} has ${beside}.${why ? ` ${why}` : ''}`]
    })
  })
  if (lines.length === 0) return 'No peer is ahead of Holdfast in any column below.'
  return `Where a peer is ahead of the better of our two stores, by more than 5 %:\n\n${lines.join('\n')}`
}

function best(figure: Figure, column: Column, result: Result, isOurs: boolean) {
  const candidates = namesOf(figure, result)
    .filter((name) => {
      const { family } = contenderOf(name)
      return family !== 'raw' && (family === 'holdfast') === isOurs
    })
    .map((name) => ({ name, rounds: figuresOf(result, column.measure, name) }))
    .filter(({ rounds }) => rounds.length > 0)
    .map(({ name, rounds }) => ({ name, value: inUnit(median(rounds), column.unit) }))
    .sort((a, b) => (column.isLess ? a.value - b.value : b.value - a.value))
  return candidates[0]
}

function aimsTable(results: Results): string {
  const rows = peerAims(results).map(({ name, aim, isMost = false, figures: rounds }) => {
    const here = median(rounds)
    const isMet = isMost ? here <= aim : here >= aim
    const range = rounds.length > 1 ? ` (${Math.min(...rounds).toFixed(2)} – ${Math.max(...rounds).toFixed(2)})` : ''
    return [
      name,
      `${isMost ? 'at most' : 'at least'} ${aim}`,
      `${here.toFixed(2)}${range}`,
      isMet ? 'met' : '**missed**',
    ]
  })
  return table(['', 'aim', 'here', ''], rows)
}

function settingsTable(all: readonly Result[]): string {
  const names = [...new Set(all.flatMap(({ contenders: taking }) => taking))]
  return table(
    ['', 'how it is set up'],
    names.map((name) => [contenderOf(name).label, contenderOf(name).settings]),
  )
}

function machineText(all: readonly Result[]): string {
  const [{ versions, server } = all[0] as Result] = all
  const loads = all.flatMap(({ rounds }) =>
    Object.entries(rounds)
      .filter(([measure]) => measure.endsWith('load'))
      .flatMap(([, sides]) =>
        Object.values(sides)
          .flat()
          .filter((load) => load !== null),
      ),
  )
  const days = [...new Set(all.map(({ takenAt }) => takenAt.slice(0, 10)))].sort()
  const lines = [
    `- ${usualMachine(all)}; servers and clients share them.`,
    `- ${Object.entries(versions)
      .map(([name, version]) => `${name} ${version}`)
      .join(', ')}.`,
    `- PostgreSQL with its defaults: ${Object.entries(server)
      .map(([name, value]) => `\`${name} = ${value}\``)
      .join(', ')}.`,
    `- Redis with \`appendonly yes\`, no snapshots, its log not rewritten during a run. SQLite with a write-ahead log and \`synchronous = FULL\`.`,
    `- Measured on ${days.join(', ')}; load of the machine when a round began: ${loads.length > 0 ? `${median(loads).toFixed(1)} at the median, ${Math.max(...loads).toFixed(1)} at most` : 'unknown'}.`,
    ...[...new Set(all.flatMap(({ without }) => without ?? []))].map((line) => `- ${line}`),
    ...(all.some(({ isQuick }) => isQuick) ? ['- **Some results are from a quick run: do not rely on them.**'] : []),
  ]
  return lines.join('\n')
}

function table(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(heads), `|${heads.map(() => '---').join('|')}|`, ...rows.map(line)].join('\n')
}
