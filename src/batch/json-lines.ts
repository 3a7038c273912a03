// JSON lines, in and out: one value a line; empty lines are skipped. Only the current line is kept in memory.

import { HoldfastError } from '../errors.ts'
import { parseJson } from '../job/json.ts'
import { show } from '../runtime/duration.ts'
import type { BatchItem } from './options.ts'

/** Text, or the chunks of a file, a request or a pipe: text or bytes, cut anywhere. */
export type LineSource = string | Iterable<string | Uint8Array> | AsyncIterable<string | Uint8Array>

/** A longer line is refused: it is not a line that was intended. */
const lineChars = 16 * 1024 * 1024
const byteOrderMark = /^\uFEFF/

/**
 * The value of every line, such as an item of a batch. A line that is not JSON ends the iteration with INVALID_PAYLOAD, which
 * names the line. The type is the caller's statement; a batch checks each item when it takes it.
 */
export async function* jsonLines<T = BatchItem>(source: LineSource): AsyncGenerator<T, void> {
  let line = 0
  for await (const text of linesOf(source)) {
    line += 1
    if (text.trim() !== '') yield parsed(line === 1 ? text.replace(byteOrderMark, '') : text, line) as T
  }
}

/** The format that `jsonLines` reads, a line at a time: `pipeline(toJsonLines(batch.results()), file)`. */
export async function* toJsonLines(values: Iterable<unknown> | AsyncIterable<unknown>): AsyncGenerator<string, void> {
  for await (const value of values) yield `${JSON.stringify(value)}\n`
}

function parsed(text: string, line: number): unknown {
  try {
    return parseJson(text)
  } catch (cause) {
    throw unreadable(line, `is not JSON (${(cause as Error).message})`, cause)
  }
}

async function* linesOf(source: LineSource): AsyncGenerator<string, void> {
  let rest = ''
  let line = 1
  for await (const text of textOf(source, () => line)) {
    const parts = text.split('\n')
    parts[0] = rest + parts[0]
    rest = parts.pop() as string
    line += parts.length
    if (rest.length > lineChars) throw unreadable(line, `has more than ${lineChars} characters`)
    yield* parts
  }
  if (rest !== '') yield rest
}

async function* textOf(source: LineSource, line: () => number): AsyncGenerator<string, void> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  const decode = (bytes?: Uint8Array): string => {
    try {
      return bytes ? decoder.decode(bytes, { stream: true }) : decoder.decode()
    } catch (cause) {
      throw unreadable(line(), 'is not UTF-8', cause)
    }
  }
  for await (const piece of typeof source === 'string' ? [source] : iterable(source)) {
    if (typeof piece === 'string') yield piece
    else if (piece instanceof Uint8Array) yield decode(piece)
    else throw invalid(piece)
  }
  yield decode()
}

function iterable(source: Exclude<LineSource, string>): Exclude<LineSource, string> {
  if (typeof source === 'object' && source !== null && (Symbol.asyncIterator in source || Symbol.iterator in source)) {
    return source
  }
  throw invalid(source)
}

function invalid(given: unknown): HoldfastError {
  const message = `jsonLines takes a text, or a stream of texts or bytes; got ${show(given)}.`
  return new HoldfastError('INVALID_OPTION', message, { option: 'source' })
}

function unreadable(line: number, why: string, cause?: unknown): HoldfastError {
  return new HoldfastError('INVALID_PAYLOAD', `Line ${line} ${why}.`, { line }, { cause })
}
