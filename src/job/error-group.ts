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

export interface ErrorGroup {
  /** 16 hexadecimal digits. */
  readonly fingerprint: string
  readonly code: string | null
  /** What the messages of the group have in common. */
  readonly message: string
}

/** The group of an error. Made once for a death: a store keeps the fingerprint with the job, and the rest with the group. */
export function errorGroup(error: JobError | null): ErrorGroup {
  const { name = '', message = '', stack = '' } = error ?? {}
  const code = groupCode(error)
  const common = groupMessage(message)
  return { fingerprint: hashOf([name, code ?? '', common, topFrame(stack)].join('\n')), code, message: common }
}

function groupCode(error: JobError | null): string | null {
  return error?.code ?? error?.causes?.find(({ code }) => code !== undefined)?.code ?? null
}

function groupMessage(message: string): string {
  const [line = ''] = message.trimStart().split('\n', 1)
  return clip(withoutIds(line.slice(0, 4 * messageBytes)), messageBytes)
}

/** What a character makes of the word that it is in. */
export type Mark = 'id' | 'word' | 'gap'

/**
 * A word with a digit or an `@` is taken for a number, an id or an address. The message is the application's text, or a
 * stranger's, so each character is looked at once. One pattern for the whole word tried each place of a long word without
 * digits again: 1,200 characters took 92 ms, in SQLite's write transaction.
 */
export function withoutIds(text: string, markOf: (character: string) => Mark = markIn): string {
  let kept = ''
  let word = ''
  let isId = false
  for (const character of text) {
    const mark = markOf(character)
    if (mark === 'gap') {
      kept += (isId ? '#' : word) + character
      word = ''
      isId = false
    } else {
      word += character
      isId ||= mark === 'id'
    }
  }
  return (kept + (isId ? '#' : word)).replaceAll(/#(?:[:,/]#)+/g, '#')
}

function markIn(character: string): Mark {
  if (/[\p{N}@]/u.test(character)) return 'id'
  return /[\p{L}_.+-]/u.test(character) ? 'word' : 'gap'
}

/** The first frame of a stack that is not Node's own: its function, and its file without line and column. */
export function topFrame(stack: string): string {
  const frames = stack.split('\n').filter((line) => /^\s+at /.test(line))
  const line = frames.find((line) => !line.includes('node:')) ?? frames[0] ?? ''
  const frame = line.trimStart().slice('at '.length)
  if (/[\r\u2028\u2029]/.test(frame)) return ' ' // Node writes no such frame
  const at = frame.lastIndexOf(' (')
  const called = at < 0 ? '' : frame.slice(0, at)
  const place = (at < 0 ? frame : frame.slice(at + 2)).replace(/\)$/, '')
  const [file = ''] = place.replace(/(?::\d+){1,2}$/, '').split(/[?#]/, 1)
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
