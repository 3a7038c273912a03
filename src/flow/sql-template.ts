// A statement as a tagged template. Every store accepts `$1`, `$2`, … in the SQL of effects.

import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

export function toStatement(
  texts: TemplateStringsArray,
  values: readonly unknown[],
): { readonly text: string; readonly values: readonly unknown[] } {
  if (!Array.isArray(texts) || !('raw' in texts)) {
    const message = `sql is the tag of a template: sql\`delete from notes where id = \${id}\`; got ${show(texts)}. Otherwise use effects.sql(text, values).`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'sql' })
  }
  const text = texts.reduce((whole, part, i) => `${whole}$${i}${part}`)
  return { text, values }
}
