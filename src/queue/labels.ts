// Labels as the caller writes them.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { isPlainObject } from '../job/codec.ts'
import {
  areLabelRules,
  areLabels,
  encodeLabels,
  isLabelName,
  isLabelValue,
  type LabelRules,
  type Labels,
} from '../job/labels.ts'
import { isKeyPath } from '../job/limit-key.ts'
import { show } from '../runtime/duration.ts'

/** The labels that an enqueue states, as JSON text; null: none. */
export function checkLabels(labels: unknown): string | null {
  if (areLabels(labels)) return encodeLabels(labels)
  throw invalid(labels, "labels is an object of texts, such as { customer: 'c1' }", textRule)
}

/** The labels by which jobs are found. */
export function checkLabelCondition(labels: unknown): Labels {
  const what = "labels names labels with their values, such as { customer: 'c1' }"
  if (!areLabels(labels)) throw invalid(labels, what, textRule)
  if (Object.keys(labels).length > 0) return labels
  throw new HoldfastError('INVALID_OPTION', `${what}; it names none. Leave it out, or name at least one.`, {
    option: 'labels',
  })
}

export function checkLabelRules(labels: unknown): { readonly labels?: LabelRules } {
  if (labels === undefined) return {}
  if (areLabelRules(labels)) return Object.keys(labels).length === 0 ? {} : { labels: { ...labels } }
  const valueRule = "a path names a property of the payload, such as 'customer.id'"
  throw invalid(
    labels,
    "labels of a queue is an object of paths into the payload, such as { customer: 'customer.id' }",
    {
      isValue: isKeyPath,
      valueRule,
    },
  )
}

interface Rule {
  readonly isValue: (value: unknown) => boolean
  readonly valueRule: string
}

const textRule: Rule = {
  isValue: isLabelValue,
  valueRule: `a value is 1 to ${bounds.labelBytes} bytes of well-formed text without NUL`,
}

function invalid(labels: unknown, what: string, { isValue, valueRule }: Rule): HoldfastError {
  const refuse = (why: string, facts = {}) =>
    new HoldfastError('INVALID_OPTION', `${what}; ${why}.`, { option: 'labels', ...facts })
  if (!isPlainObject(labels)) return refuse(`got ${show(labels)}`)
  const entries = Object.entries(labels as object)
  const [name] = entries.find(([each]) => !isLabelName(each)) ?? []
  if (name !== undefined) {
    const rule = 'a name is 1 to 64 characters of A-Z a-z 0-9 . _ - and begins with a letter or _'
    return refuse(`${rule}; got ${show(name)}`, { label: name })
  }
  const wrong = entries.find(([, value]) => !isValue(value))
  if (wrong) return refuse(`${valueRule}; that of ${wrong[0]} is ${kindOf(wrong[1])}`, { label: wrong[0] })
  return refuse(`at most ${bounds.labelsMax} are allowed, and these are ${entries.length}`, { labels: entries.length })
}

/** The value itself may be personal data, and is never part of an error. */
function kindOf(value: unknown): string {
  if (value === undefined || value === null) return String(value)
  if (value === '') return 'empty'
  return typeof value === 'string' ? 'another text' : `of type ${typeof value}`
}
