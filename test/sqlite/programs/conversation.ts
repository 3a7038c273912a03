// How a program of this folder talks with the test that started it: one JSON value a line.
import { writeSync } from 'node:fs'
import { createInterface } from 'node:readline'

let lines: AsyncIterator<string> | undefined // made when first asked for, because listening keeps a process alive

export function say(value: unknown): void {
  writeSync(1, `${JSON.stringify(value)}\n`)
}

/** The next thing the test tells; undefined when it has no more to say. */
export async function hear<T>(): Promise<T | undefined> {
  lines ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  const { value, done } = await lines.next()
  return done ? undefined : (JSON.parse(value) as T)
}

/** Says that it is ready, and resolves when told to go: so that several programs start in the same moment. */
export async function go(): Promise<void> {
  say('ready')
  await hear()
}
