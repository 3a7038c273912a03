// The expressions of docs/guides/monitoring.md and of the dashboard name only metrics and labels that exist.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { catalogue, type MetricEntry } from '../../src/observe/catalogue.ts'
import { root } from '../support/checkout.ts'

const prefix = 'holdfast_'
const suffixes = { histogram: ['_bucket', '_sum', '_count'], counter: [''], gauge: [''] }
const known: ReadonlyMap<string, MetricEntry> = new Map(
  Object.entries<MetricEntry>(catalogue).flatMap(([name, entry]) =>
    suffixes[entry.type].map((suffix) => [`${prefix}${name}${suffix}`, entry] as const),
  ),
)

test('every metric of the dashboard exists, and its panels and variables have expressions', () => {
  const dashboard = JSON.parse(read('docs/guides/grafana-dashboard.json'))
  const panels: { title: string; targets: { expr: string; legendFormat: string }[] }[] = dashboard.panels
  const expressions = panels.flatMap(({ targets }) => targets.map(({ expr }) => expr))
  assert.ok(panels.length >= 10 && expressions.length >= panels.length)
  assert.deepEqual(expressions.flatMap(faultsOf), [])
  assert.deepEqual(faultsOf(dashboard.templating.list[1].query), [])
  for (const { title, targets } of panels) {
    for (const { expr, legendFormat } of targets) {
      const shown = Array.from(legendFormat.matchAll(/\{\{(\w+)\}\}/g), ([, label]) => label as string)
      for (const label of shown) assert.match(expr, new RegExp(`by \\([^)]*\\b${label}\\b`), `${title}: ${label}`)
    }
  }
})

test('every metric of the page exists, and gauges of the store are never added up', () => {
  const page = read('docs/guides/monitoring.md')
  const named = [...new Set(page.match(/holdfast_\w+/g))].filter((name) => name !== prefix)
  assert.ok(named.length >= 15)
  assert.deepEqual(
    named.filter((name) => !known.has(name)),
    [],
  )
  const alerts = Array.from(
    page.matchAll(/expr: (?:>\n)?([\s\S]*?)\n +(?:for|annotations):/g),
    ([, text]) => text ?? '',
  )
  const panels = Array.from(page.matchAll(/^\|[^|]*\| (`.*`) \|$/gm), ([, text]) => text ?? '')
  assert.ok(alerts.length >= 10 && panels.length >= 8)
  assert.deepEqual([...alerts, ...panels].flatMap(faultsOf), [])
})

test('the judge of expressions finds an unknown metric, an unknown label and a wrong sum', () => {
  const bad = [
    'sum(holdfast_jobs_done_total)',
    'holdfast_run_duration_seconds',
    'sum by (worker) (rate(holdfast_jobs_total[5m]))',
    'holdfast_jobs_total{state="dead"}',
    'sum(holdfast_queue_jobs)',
    'sum by (queue) (holdfast_waiting_age_seconds)',
  ]
  assert.deepEqual(
    bad.filter((expression) => faultsOf(expression).length === 0),
    [],
  )
})

function faultsOf(expression: string): string[] {
  const names = expression.match(/holdfast_\w+/g) ?? []
  const entries = names.map((name) => known.get(name))
  const labels = new Set(['le', ...entries.flatMap((entry) => entry?.labels ?? [])])
  const grouped = Array.from(expression.matchAll(/by \(([^)]*)\)/g), ([, list]) => list?.split(/,\s*/) ?? []).flat()
  const matched = Array.from(expression.matchAll(/(\w+)=~?"/g), ([, label]) => label ?? '')
  const summed = Array.from(expression.matchAll(/sum(?: by \([^)]*\))? \(?\(?(holdfast_\w+)|sum\((holdfast_\w+)/g))
  return [
    ...names.filter((name) => !known.has(name)).map((name) => `no metric ${name}`),
    ...[...grouped, ...matched]
      .filter((label) => !labels.has(label))
      .map((label) => `no label ${label}: ${expression}`),
    ...summed
      .map(([, first, second]) => first ?? second ?? '')
      .filter((name) => known.get(name)?.fromStore)
      .map((name) => `${name} is the same in every process and is added up`),
  ]
}

function read(file: string): string {
  return readFileSync(join(root, file), 'utf8')
}
