// A SCHEMA of a database, by name. In the text of statements these words stand for something of the schema:
//
// - `holdfast.`: the schema itself;
// - LANE_LOCKS, TOKEN_LOCKS and the like: numbers of its own, so that schemas in one database do not share advisory locks;
// - WAKE_CHANNEL: the channel that its wake-ups are sent on.

import { createHash } from 'node:crypto'
import { HoldfastError } from '../../../errors.ts'
import { show } from '../../../runtime/duration.ts'

/** A schema's name, and how SQL written for `holdfast` is read in it. */
export class Schema {
  readonly name: string
  readonly quoted: string
  /** For LISTEN and NOTIFY. */
  readonly channel: string
  readonly #texts = new Map<string, string>()

  constructor(name: string) {
    if (typeof name !== 'string' || !/^[^'\\$\0]+$/.test(name) || Buffer.byteLength(name) > 63) {
      throw new HoldfastError(
        'INVALID_OPTION',
        `A schema name is 1 to 63 bytes without quotes, backslashes and dollar signs; got ${show(name)}.`,
        { option: 'schema', value: name },
      )
    }
    this.name = name
    this.quoted = `"${name.replaceAll('"', '""')}"`
    this.channel = channelOf(name)
  }

  sql(text: string): string {
    let known = this.#texts.get(text)
    if (known === undefined) {
      known = this.#render(text)
      this.#texts.set(text, known)
    }
    return known
  }

  #render(text: string): string {
    return text.replace(
      /\bholdfast\.|\bWAKE_CHANNEL\b|\b(?:LANE|TOKEN|SWEEP|SCHEMA|QUEUE|BATCH|LIMIT_KEY|ADMIT|LOWER)_LOCKS\b/g,
      (found) => {
        if (found === 'holdfast.') return `${this.quoted}.`
        return found === 'WAKE_CHANNEL' ? `'${this.channel}'` : String(lockNumber(found, this.name))
      },
    )
  }
}

const channelMaxBytes = 63

/** A name that is too long for a channel is replaced by its hash, so that no two schemas share a channel. */
function channelOf(schema: string): string {
  const name = `holdfast ${schema}`
  if (Buffer.byteLength(name) <= channelMaxBytes) return name
  return `holdfast ${createHash('sha256').update(schema).digest('hex').slice(0, 32)}`
}

function lockNumber(kind: string, schema: string): number {
  return createHash('sha256').update(`holdfast ${kind} ${schema}`).digest().readInt32BE(0)
}
