// The `next` of a page: the position of its last row, as text that callers pass back and do not read.

import { toError } from '../errors.ts'
import { isText } from '../job/names.ts'
import { unknownPage } from './refusals.ts'

export function encodeCursor(position: readonly (string | number)[]): string {
  return Buffer.from(JSON.stringify(position)).toString('base64url')
}

/** Throws INVALID_OPTION if the text is not a position that this listing has given out. */
export function decodeCursor<Position>(text: string, isPosition: (value: readonly unknown[]) => boolean): Position {
  try {
    const value = JSON.parse(Buffer.from(text, 'base64url').toString())
    if (Array.isArray(value) && value.every(isPart) && isPosition(value)) return value as Position
  } catch {
    // no JSON: refused below
  }
  throw toError(unknownPage())
}

/** Texts of a position are names that a store keeps; PostgreSQL takes no other as a parameter. */
function isPart(value: unknown): boolean {
  return typeof value !== 'string' || value === '' || isText(value)
}

/** The position of an error group in a list of groups, on every store: what it is ordered by, its queue, its fingerprint. */
export type GroupMark = readonly [turn: number, queue: string, group: string]

export function isGroupMark([turn, queue, group, ...rest]: readonly unknown[]): boolean {
  return Number.isSafeInteger(turn) && typeof queue === 'string' && typeof group === 'string' && rest.length === 0
}
