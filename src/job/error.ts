import { bounds } from './bounds.ts'
import type { JobError } from './record.ts'

/** Whatever was thrown, as data that fits the history. */
export function jobError(thrown: unknown): JobError {
  if (!(thrown instanceof Error)) return { message: clip(describe(thrown), bounds.errorTextBytes / 4) }
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

/** Cut to length; NUL and half characters, which some stores refuse, become visible. */
function clip(text: string, length: number): string {
  const cut = text.length > length ? `${text.slice(0, length - 1)}…` : text
  return cut.toWellFormed().replaceAll('\0', '\u2400')
}
