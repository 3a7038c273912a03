// Silent while green. Prints, as they happen:
// - each failure with what its file printed,
// - each skip with its reason (a skip without one fails the run),
// - what a test reports with `t.diagnostic`, such as a seed, and the test runner's own summary.
// The end repeats each failure, because a log is often read from its tail alone, and lists the rooms that exceeded their budget.
import { relative } from 'node:path'
import type { EventData } from 'node:test'
import type { TestEvent } from 'node:test/reporters'
import { inspect } from 'node:util'
import { exceededBudgets } from './budgets.ts'

const printedMaxChars = 20_000
const repeatedMaxChars = 2_000

export default async function* quietReporter(events: AsyncIterable<TestEvent>): AsyncGenerator<string> {
  const printed = new Map<string, string>()
  const titles = new Map<string, string[]>()
  const secondsOfFile = new Map<string, number>()
  const failures: string[] = []

  for await (const { type, data } of events) {
    switch (type) {
      case 'test:stdout':
      case 'test:stderr':
        printed.set(fileOf(data), ((printed.get(fileOf(data)) ?? '') + data.message).slice(-printedMaxChars))
        break
      case 'test:start':
        titles.set(fileOf(data), [...(titles.get(fileOf(data)) ?? []).slice(0, data.nesting), data.name])
        break
      case 'test:pass':
        if (isSet(data.skip)) yield skipLine(data)
        if (isSet(data.todo)) yield `☐ ${where(data)} ${data.name}: to do, ${data.todo}\n`
        break
      case 'test:fail':
        if (isSet(data.todo)) yield `☐ ${where(data)} ${data.name}: to do, ${data.todo}\n`
        else if (!failedThroughSubtests(data)) {
          const title = (titles.get(fileOf(data)) ?? []).slice(0, data.nesting).concat(data.name).join(' › ')
          const failure = `\n✖ ${title}\n  ${where(data)}\n${indent(errorText(data.details.error))}\n`
          failures.push(failure.slice(0, repeatedMaxChars))
          yield failure
          yield printedText(printed.get(fileOf(data)))
          printed.delete(fileOf(data))
        }
        break
      case 'test:diagnostic':
        yield data.file === undefined ? `ℹ ${data.message}\n` : `ℹ ${where(data)} ${data.message}\n`
        break
      case 'test:summary':
        if (data.file !== undefined) secondsOfFile.set(relative(process.cwd(), data.file), data.duration_ms / 1_000)
        break
    }
  }
  yield* exceededBudgets(secondsOfFile)
  if (failures.length > 0) yield `\n${failures.length} failed:\n${failures.join('')}`
}

function skipLine(test: EventData.TestPass): string {
  if (typeof test.skip === 'string' && test.skip !== '') return `﹣ skipped ${where(test)} ${test.name}: ${test.skip}\n`
  process.exitCode = 1
  return `✖ ${where(test)} ${test.name}: skipped without a reason\n`
}

function errorText(error: Error): string {
  const { cause, exitCode, signal } = error as Error & { exitCode?: number; signal?: string }
  if (signal) return `the process was ended by ${signal}`
  if (exitCode) return `the process ended with ${exitCode}`
  if (!(cause instanceof Error)) return String(cause ?? error.message)
  // An assertion says all it knows in its message; its fields would say it again.
  const text = cause.name === 'AssertionError' && cause.stack ? cause.stack : inspect(cause)
  return text.replace(/^\s+at .*\(node:internal\/.*\n?/gm, '')
}

function printedText(output: string | undefined): string {
  return output ? `  printed by this file:\n${indent(output)}\n` : ''
}

function failedThroughSubtests(test: EventData.TestFail): boolean {
  return (test.details.error as { failureType?: string }).failureType === 'subtestsFailed'
}

// The file that was run. A test defined in a shared suite has its own location in `file`.
function fileOf(data: EventData.LocationInfo): string {
  return (data as { entryFile?: string }).entryFile ?? data.file ?? ''
}

function where({ file, line }: EventData.LocationInfo): string {
  return `${relative(process.cwd(), file ?? '')}:${line}`
}

function isSet(mark: string | boolean | undefined): boolean {
  return mark !== undefined && mark !== false
}

function indent(text: string): string {
  return text.trimEnd().replace(/^/gm, '    ')
}
