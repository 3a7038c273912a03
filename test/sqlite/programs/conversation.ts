// How a program of this folder communicates with the test that started it: one JSON value a line.
import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

let lines: AsyncIterator<string> | undefined // made at first use, because reading keeps a process alive

export function say(value: unknown): void {
  writeSync(1, `${JSON.stringify(value)}\n`)
}

/** The next value that the test sends; undefined at the end. */
export async function hear<T>(): Promise<T | undefined> {
  lines ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  const { value, done } = await lines.next()
  return done ? undefined : (JSON.parse(value) as T)
}

/** Prints that it is ready, and resolves when the test answers: so several programs start at the same moment. */
export async function go(): Promise<void> {
  say('ready')
  await hear()
}
