// Labels of a job: names with values by which jobs are found, such as `{ customer: 'c1' }`. Pure: every store and every kind of
// enqueue uses these functions, or SQL with the same rules.
//
// A label is stated by the enqueue, or found by the queue's stored definition: a path into the payload, with the syntax of a
// limit key's path. Stated labels win, name by name. A path without a value gives no label. A value that is a text but cannot be
// a label is refused: a label that was left out silently would hide the job from a search that must find it. Only jobs that the
// store makes itself are stored without such a label, because no caller could get the error.

import { bounds } from './bounds.ts'
import { byteLength, decodeJson, isPlainObject } from './codec.ts'
import { parseJson } from './json.ts'
import { isKeyPath, numberKey, valueAt } from './limit-key.ts'
import { isText } from './names.ts'
import type { NewJob } from './record.ts'

export type Labels = Readonly<Record<string, string>>

/** Names of labels, each with the path of the payload that has its value. */
export type LabelRules = Readonly<Record<string, string>>

/** Why the labels of a job are refused: the value at a path cannot be a label, or (name null) there are too many labels. */
export interface UnfitLabel {
  readonly name: string | null
  readonly path: string | null
  /** Bytes of the value, or the number of labels; null: not known. */
  readonly size: number | null
}

const labelName = /^[A-Za-z_][A-Za-z0-9_.-]{0,63}$/

export function isLabelName(name: unknown): name is string {
  return typeof name === 'string' && labelName.test(name)
}

export function isLabelValue(value: unknown): value is string {
  return isText(value) && (value.length * 3 <= bounds.labelBytes || byteLength(value) <= bounds.labelBytes)
}

export function areLabels(value: unknown): value is Labels {
  return hasEntries(value, isLabelValue)
}

export function areLabelRules(value: unknown): value is LabelRules {
  return hasEntries(value, isKeyPath)
}

function hasEntries(value: unknown, isValue: (each: unknown) => boolean): boolean {
  if (!isPlainObject(value)) return false
  const names = Object.keys(value as object)
  if (names.length > bounds.labelsMax) return false
  for (const name of names) {
    if (!labelName.test(name) || !isValue((value as Readonly<Record<string, unknown>>)[name])) return false
  }
  return true
}

/** JSON text, with the names in their order; null: there are none. A name may be `__proto__`. */
export function encodeLabels(labels: Labels): string | null {
  const names = Object.keys(labels)
  if (names.length === 0) return null
  const areSorted = names.every((name, i) => i === 0 || (names[i - 1] as string) < name)
  if (areSorted) return JSON.stringify(labels)
  return JSON.stringify(Object.fromEntries(names.sort().map((name) => [name, labels[name]])))
}

/** A text that is damaged reads as no labels. */
export function decodeLabels(text: string | null): Labels {
  const labels = text === null ? {} : decodeJson(text)
  return areLabels(labels) ? labels : {}
}

export function isLabelsText(text: unknown): boolean {
  return isText(text) && areLabels(decodeJson(text))
}

type Labelled = Pick<NewJob, 'labels' | 'payload' | 'madeByStore'>

/** The labels of a job as JSON text: those that it states, and those that its queue's definition finds. */
export function resolveLabels(rules: LabelRules | null, job: Labelled): string | null | UnfitLabel {
  const { labels = null, payload, madeByStore = false } = job
  if (rules === null) return labels
  const found = new Map(Object.entries(decodeLabels(labels)))
  const stated = new Set(found.keys())
  const json = parseJson(payload)
  for (const [name, path] of Object.entries(rules)) {
    const value = stated.has(name) ? undefined : textOf(valueAt(path, json))
    const fits = value === undefined || isLabelValue(value)
    if (!fits && !madeByStore) return { name, path, size: byteLength(value) }
    if (value === undefined || !fits || (madeByStore && found.size === bounds.labelsMax)) continue
    found.set(name, value)
  }
  if (found.size > bounds.labelsMax) return { name: null, path: null, size: found.size }
  return encodeLabels(Object.fromEntries(found))
}

/** What a limit key could be, of any length. */
function textOf(value: unknown): string | undefined {
  if (typeof value === 'number') return numberKey(value)
  return typeof value === 'string' && value !== '' ? value : undefined
}

export function isUnfit(labels: string | null | UnfitLabel): labels is UnfitLabel {
  return typeof labels === 'object' && labels !== null
}
