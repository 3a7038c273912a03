import { bounds } from './bounds.ts'
import { byteLength } from './codec.ts'
import type { JobError } from './record.ts'

/** Any thrown value as data that fits the history. */
export function jobError(thrown: unknown): JobError {
  try {
    return thrown instanceof Error
      ? describeError(thrown)
      : { message: clip(describe(thrown), bounds.errorTextBytes / 4) }
  } catch {
    return { message: 'Something was thrown that cannot be described.' }
  }
}

/** The error of a job that was not started before `startBefore`. */
export function overdueError(startBefore: number): JobError {
  const time = new Date(startBefore)
  const shown = Number.isNaN(time.getTime()) ? startBefore : time.toISOString()
  return { name: 'Overdue', message: `Not started before ${shown}.` }
}

function describeError(thrown: Error): JobError {
  const { name, message, stack } = thrown
  const code = (thrown as { code?: unknown }).code
  return {
    message: clip(String(message) || name, bounds.errorTextBytes / 4),
    name: clip(String(name), 200),
    ...(typeof code === 'string' && { code: clip(code, 200) }),
    ...(typeof stack === 'string' && { stack: clip(stack, bounds.errorTextBytes / 2) }),
  }
}

function describe(thrown: unknown): string {
  if (typeof thrown === 'string') return thrown
  if (thrown === undefined || thrown === null) return `The handler threw ${thrown}.`
  try {
    return JSON.stringify(thrown) ?? String(thrown)
  } catch {
    return Object.prototype.toString.call(thrown)
  }
}

/** Cuts to this many bytes. NUL and lone surrogates, which some stores refuse, are replaced by visible characters. */
export function clip(text: string, maxBytes: number): string {
  const safe = text
    .slice(0, maxBytes + 1)
    .toWellFormed()
    .replaceAll('\0', '\u2400')
  if (byteLength(safe) <= maxBytes) return safe
  let cut = safe.slice(0, maxBytes)
  while (byteLength(cut) > maxBytes - 3)
    cut = cut.slice(0, Math.min(cut.length - 1, Math.floor((cut.length * maxBytes) / byteLength(cut)) - 3))
  return `${cut.toWellFormed()}…`
}
