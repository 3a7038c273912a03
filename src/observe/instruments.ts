// The catalogue as instruments of prom-client, in a registry.

import {
  Counter,
  Gauge,
  Histogram,
  type OpenMetricsContentType,
  type PrometheusContentType,
  type Registry,
} from 'prom-client'
import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'
import { catalogue, type MetricEntry, type MetricName } from './catalogue.ts'

export type AnyRegistry = Registry<PrometheusContentType> | Registry<OpenMetricsContentType>

type Entry<Name extends MetricName> = (typeof catalogue)[Name]
type Labels<Name extends MetricName> = Entry<Name>['labels'][number]
type Instrument<Name extends MetricName> = {
  counter: Counter<Labels<Name>>
  gauge: Gauge<Labels<Name>>
  histogram: Histogram<Labels<Name>>
}[Entry<Name>['type']]

export type Instruments = { readonly [Name in MetricName]: Instrument<Name> }

/** In seconds: from a call that is served from memory to a job of half an hour. */
export const defaultBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 300, 1_800]

const names = Object.keys(catalogue) as MetricName[]
const kinds = { counter: Counter, gauge: Gauge, histogram: Histogram }

export interface InstrumentOptions {
  readonly registry: AnyRegistry
  readonly prefix: string
  readonly buckets: readonly number[]
  /** Called before a metric that comes from the store is read. */
  readonly refresh: () => Promise<void>
}

export function instrumentsIn({ registry, prefix, buckets, refresh }: InstrumentOptions): Instruments {
  checkRoom(registry, prefix)
  const made = names.map((name) => {
    const { type, help, labels, fromStore }: MetricEntry = catalogue[name]
    const rest = { ...(type === 'histogram' && { buckets: [...buckets] }), ...(fromStore && { collect: refresh }) }
    return [name, new kinds[type]({ name: prefix + name, help, labelNames: labels, registers: [registry], ...rest })]
  })
  return Object.fromEntries(made)
}

export function removeFrom(registry: AnyRegistry, prefix: string): void {
  for (const name of names) registry.removeSingleMetric(prefix + name)
}

/** Checked before the first metric is registered, so that a conflict leaves none of them in the registry. */
function checkRoom(registry: AnyRegistry, prefix: unknown): asserts prefix is string {
  if (typeof prefix !== 'string' || !/^[a-z_:][\w:]*$/i.test(prefix)) {
    throw new HoldfastError('INVALID_OPTION', `prefix must be of letters, digits, _ and :; got ${show(prefix)}.`, {
      option: 'prefix',
      value: prefix,
    })
  }
  const taken = names.find((name) => registry.getSingleMetric(prefix + name) !== undefined)
  if (taken === undefined) return
  throw new HoldfastError(
    'INVALID_OPTION',
    `This registry already has a metric ${prefix + taken}. Pass another prefix or another registry.`,
    { option: 'prefix', value: prefix },
  )
}
