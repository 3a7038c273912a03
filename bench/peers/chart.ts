// Charts as SVG text: bars with the span of their rounds, and lines over time. Colours follow the reader's colour scheme, light
// or dark. The layout depends on the figures alone.

export interface Bar {
  readonly label: string
  readonly kind: 'ours' | 'peer' | 'raw'
  /** One segment, or several that are stacked. */
  readonly values: readonly number[]
  /** From the smallest round to the largest. */
  readonly span?: readonly [number, number]
  readonly text: string
  /** Not measured here, but stated in its documentation. */
  readonly isDocumented?: boolean
}

export interface BarChart {
  readonly title: string
  readonly subtitle: string
  readonly bars: readonly Bar[]
  readonly isLogarithmic?: boolean
  /** Names of stacked segments. */
  readonly segments?: readonly string[]
}

export interface LineChart {
  readonly title: string
  readonly subtitle: string
  readonly lines: readonly { readonly label: string; readonly kind: Bar['kind']; readonly values: readonly number[] }[]
  readonly step: (index: number) => string
  readonly text: (value: number) => string
}

const width = 760
const top = 62
const rowHeight = 30
const barHeight = 17
const labelWidth = 276
const textWidth = 84
const plot = width - labelWidth - textWidth
const font = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'

const style = `
    .background { fill: #ffffff } .title { fill: #1c2330; font-weight: 600 } .text { fill: #1c2330 } .soft { fill: #5b6472 }
    .grid { stroke: #dfe3e8 } .span { stroke: #1c2330; fill: none }
    .ours { color: #0f7b6c } .ours-1 { color: #4fae9f } .raw { color: #c9ced6 }
    .peer { color: #8a94a6 } .peer-1 { color: #b4541f } .peer-2 { color: #5667c4 }
    .filled { fill: currentColor } .second { fill-opacity: 0.5 }
    .documented { fill-opacity: 0.25; stroke: currentColor; stroke-dasharray: 4 3 }
    .line { stroke: currentColor; fill: none; stroke-width: 2.5; stroke-linejoin: round }
    @media (prefers-color-scheme: dark) {
      .background { fill: #0d1117 } .title, .text { fill: #e6eaf0 } .soft { fill: #9aa4b2 } .grid { stroke: #2b323c }
      .span { stroke: #e6eaf0 } .ours { color: #2fb5a0 } .ours-1 { color: #a4e6da } .raw { color: #3d4653 }
      .peer { color: #6f7a8c } .peer-1 { color: #e08a52 } .peer-2 { color: #8e9df0 }
    }`

export function barChart({ title, subtitle, bars, isLogarithmic = false, segments = [] }: BarChart): string {
  const largest = Math.max(...bars.map(({ values, span }) => Math.max(sum(values), span?.[1] ?? 0)))
  const place = scaleOf(largest, isLogarithmic)
  const parts = bars.map((bar, i) => barText(bar, top + i * rowHeight, place, segments.length > 0))
  const legend = segments.length > 0 ? legendText(segments, top + bars.length * rowHeight + 14) : ''
  const height = top + bars.length * rowHeight + (legend === '' ? 14 : 40)
  return svg({ title, subtitle, height }, [...parts, legend])
}

function barText(
  { label, kind, values, span, text, isDocumented = false }: Bar,
  y: number,
  place: (value: number) => number,
  isStacked: boolean,
): string {
  const middle = y + rowHeight / 2
  const rectangles = values.map((_, i) => {
    const from = place(sum(values.slice(0, i)))
    const length = Math.max(1.5, place(sum(values.slice(0, i + 1))) - from)
    const classes = ['filled', kind, i > 0 && 'second', isDocumented && 'documented'].filter(Boolean).join(' ')
    const at = `x="${tenth(labelWidth + from)}" y="${tenth(middle - barHeight / 2)}"`
    const size = `width="${tenth(length)}" height="${barHeight}" rx="2"`
    return `<rect class="${classes}" ${at} ${size}/>`
  })
  const end = Math.max(place(sum(values)), span && !isStacked ? place(span[1]) : 0)
  return [
    `<text class="text" x="${labelWidth - 10}" y="${middle + 4.5}" text-anchor="end" font-size="13">${escaped(label)}</text>`,
    ...rectangles,
    span && span[1] > span[0] && !isStacked ? spanText(place(span[0]), place(span[1]), middle) : '',
    `<text class="text" x="${tenth(labelWidth + end + 9)}" y="${middle + 4.5}" font-size="13">${escaped(text)}</text>`,
  ].join('\n  ')
}

function spanText(from: number, to: number, y: number): string {
  const [a, b] = [tenth(labelWidth + from), tenth(labelWidth + to)]
  return `<path class="span" d="M${a} ${y}H${b}M${a} ${y - 4}v8M${b} ${y - 4}v8"/>`
}

function legendText(segments: readonly string[], y: number): string {
  return segments
    .map((name, i) => {
      const x = labelWidth + i * 110
      const classes = i > 0 ? 'filled peer second' : 'filled peer'
      return `<rect class="${classes}" x="${x}" y="${y - 9}" width="12" height="12" rx="2"/><text class="soft" x="${x + 18}" y="${y + 1}" font-size="12">${escaped(name)}</text>`
    })
    .join('\n  ')
}

/** Lines over time, each labelled at its end; labels that would overlap are moved apart. */
export function lineChart({ title, subtitle, lines, step, text }: LineChart): string {
  const [left, right, plotTop, plotHeight] = [58, 190, top + 8, 250]
  const largest = niceMax(Math.max(...lines.flatMap(({ values }) => values)))
  const count = Math.max(...lines.map(({ values }) => values.length))
  const x = (index: number) => left + (index / Math.max(1, count - 1)) * (width - left - right)
  const y = (value: number) => plotTop + plotHeight * (1 - value / largest)
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const at = y(largest * share)
    return `<path class="grid" d="M${left} ${tenth(at)}H${width - right}"/><text class="soft" x="${left - 8}" y="${tenth(at + 4)}" text-anchor="end" font-size="12">${text(largest * share)}</text>`
  })
  const steps = Array.from({ length: count }, (_, i) => i).filter(
    (i) => i % Math.ceil(count / 9) === 0 || i === count - 1,
  )
  const ticks = steps.map(
    (i) =>
      `<text class="soft" x="${tenth(x(i))}" y="${plotTop + plotHeight + 18}" text-anchor="middle" font-size="12">${step(i)}</text>`,
  )
  const names = apart(
    lines.map(({ values }) => y(values.at(-1) ?? 0)),
    17,
  )
  const seen: Record<string, number> = {}
  const drawn = lines.map(({ label, kind, values }, line) => {
    const nth = seen[kind] ?? 0
    seen[kind] = nth + 1
    const colour = kind === 'peer' ? `peer-${nth + 1}` : nth > 0 ? `${kind}-${nth}` : kind
    const points = values.map((value, i) => `${i === 0 ? 'M' : 'L'}${tenth(x(i))} ${tenth(y(value))}`).join('')
    return [
      `<path class="line ${colour}" d="${points}"/>`,
      `<text class="filled ${colour}" x="${width - right + 8}" y="${tenth((names[line] ?? 0) + 4)}" font-size="13">${escaped(label)}</text>`,
    ].join('\n  ')
  })
  return svg({ title, subtitle, height: plotTop + plotHeight + 34 }, [...grid, ...ticks, ...drawn])
}

/** The same positions in the same order, at least `least` apart. */
function apart(places: readonly number[], least: number): number[] {
  const order = places.map((place, i) => ({ place, i })).sort((a, b) => a.place - b.place)
  let last = Number.NEGATIVE_INFINITY
  const moved = [...places]
  for (const { place, i } of order) {
    last = Math.max(place, last + least)
    moved[i] = last
  }
  return moved
}

function scaleOf(largest: number, isLogarithmic: boolean): (value: number) => number {
  if (!isLogarithmic) return (value) => (value / largest) * plot
  return (value) => (value <= 0 ? 0 : (Math.log10(1 + value) / Math.log10(1 + largest)) * plot)
}

function niceMax(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value))
  return ([1, 2, 4, 5, 8, 10].find((step) => step * power >= value) ?? 10) * power
}

function svg(
  { title, subtitle, height }: { title: string; subtitle: string; height: number },
  parts: readonly string[],
) {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" ${font}>
  <title>${escaped(title)}</title>
  <style>${style}
  </style>
  <rect class="background" width="${width}" height="${height}" rx="6"/>
  <text class="title" x="16" y="27" font-size="16">${escaped(title)}</text>
  <text class="soft" x="16" y="47" font-size="12.5">${escaped(subtitle)}</text>
  ${parts.filter((part) => part !== '').join('\n  ')}
</svg>
`
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}

function tenth(value: number): number {
  return Math.round(value * 10) / 10
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')
}
