// Error groups. Dead jobs whose errors are alike have one fingerprint, so that an operator sees ten faults and not ten thousand
// dead jobs. Pure: every store keeps the fingerprint with the dead job, and counts by it.
//
// The fingerprint is made from:
//
// - the error's name;
// - its code, or the first code among its causes: `fetch failed` says nothing without `ECONNREFUSED`;
// - the first line of its message, with numbers and ids replaced by `#`;
// - the top frame of its stack: function and file, without the line, which changes with every release.

import { clip } from './error.ts'
import type { JobError } from './record.ts'

/** The group of jobs that died before errors were grouped. */
export const ungrouped = ''

/** Bytes of a group's message. */
const messageBytes = 300

/** The fingerprint of an error: 16 hexadecimal digits. */
export function errorGroup(error: JobError | null): string {
  const { name = '', stack = '' } = error ?? {}
  const parts = [name, groupCode(error) ?? '', groupMessage(error), topFrame(stack)]
  return hashOf(parts.join('\n'))
}

/** What the messages of a group have in common. */
export function groupMessage(error: JobError | null): string {
  const [line = ''] = (error?.message ?? '').trimStart().split('\n', 1)
  return clip(withoutIds(line.slice(0, 4 * messageBytes)), messageBytes)
}

/** A word with a digit or an `@` is taken for a number, an id or an address. */
function withoutIds(text: string): string {
  return text.replaceAll(/[\p{L}\p{N}_@.+-]*[\p{N}@][\p{L}\p{N}_@.+-]*/gu, '#').replaceAll(/#(?:[:,/]#)+/g, '#')
}

export function groupCode(error: JobError | null): string | null {
  return error?.code ?? error?.causes?.find(({ code }) => code !== undefined)?.code ?? null
}

/** The first frame of a stack that is not Node's own. */
function topFrame(stack: string): string {
  const frames = stack.split('\n').filter((line) => /^\s+at /.test(line))
  const frame = frames.find((line) => !line.includes('node:')) ?? frames[0] ?? ''
  const [, called = '', place = ''] = frame.match(/^\s+at (?:(.*) \()?(.*?)\)?$/) ?? []
  const file = place.replace(/(?::\d+){1,2}$/, '').replace(/[?#].*$/, '')
  return `${called} ${file.split(/[/\\]/).at(-1) ?? ''}`
}

/** FNV-1a, 64 bits, of the text's UTF-16 units. It takes a few hundred microseconds, and is made once a death. */
function hashOf(text: string): string {
  let hash = 0xcbf29ce484222325n
  for (let i = 0; i < text.length; i++) {
    hash = BigInt.asUintN(64, (hash ^ BigInt(text.charCodeAt(i))) * 0x100000001b3n)
  }
  return hash.toString(16).padStart(16, '0')
}
