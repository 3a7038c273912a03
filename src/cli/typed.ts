// Refusals of the library that are about what was typed: their exit code, and their sentence with the name of the flag.

import { type HoldfastError, isHoldfastError } from '../errors.ts'
import { type Option, UsageError } from './command.ts'

/** 2: the arguments are wrong, and the same call fails again. 1: the work has failed. */
export function exitCodeOf(error: unknown): 1 | 2 {
  return error instanceof UsageError || (isHoldfastError(error) && isAboutArguments(error)) ? 2 : 1
}

/** Items of a batch come from a file or standard input, and a refusal of the database itself is about what is stored. */
function isAboutArguments({ code, facts }: HoldfastError): boolean {
  if (code !== 'INVALID_OPTION' && code !== 'INVALID_NAME' && code !== 'INVALID_ID') return false
  return facts['index'] === undefined && facts['code'] === undefined && facts['option'] !== 'source'
}

/** Options of the library whose flags have other names. */
const flagNames: Readonly<Record<string, string>> = {
  states: 'state',
  ids: 'id',
  url: 'store',
  'dedup.key': 'dedup',
  'dedup.scope.window': 'dedup-scope',
  'payload.path': 'payload',
}

/** `limit must be …` becomes `--limit must be …`, if the command has such a flag. */
export function inFlags(
  { message, facts }: Pick<HoldfastError, 'message' | 'facts'>,
  flags: Readonly<Record<string, Option>>,
): string {
  const { option, conditions } = facts
  if (Array.isArray(conditions)) return conditions.reduce(conditionInFlags, inWords(message))
  if (message !== inWords(message)) return inFlags({ message: inWords(message), facts }, flags)
  if (typeof option !== 'string' || !message.startsWith(`${option} `)) return message
  const flag = flagNames[option] ?? option.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`).replace('.', '-')
  return Object.hasOwn(flags, flag) ? `--${flag}${message.slice(option.length)}` : message
}

/** Words of the library that are other words on the command line. */
const words: readonly (readonly [library: RegExp, command: string])[] = [
  [/\b(cancel|requeue|delete|reschedule|reprioritise)All\b/g, 'holdfast $1'],
  [/withJobs: true \(on the command line (--with-jobs)\)/g, '$1'],
  [/ The same call with after: error\.facts\.next goes on\./g, ''], // the command prints the flag
]

export function inWords(message: string): string {
  return words.reduce((text, [library, command]) => text.replace(library, command), message)
}

const conditionFlags: Readonly<Record<string, string>> = {
  ended: '--ended-since or --ended-before',
  errorGroup: '--error-group',
}

function conditionInFlags(message: string, condition: string): string {
  const flag = conditionFlags[condition] ?? `--${condition}`
  return message.replace(new RegExp(`(?<=[,:] (?:and )?)${condition}(?= names | is only )`), flag)
}
