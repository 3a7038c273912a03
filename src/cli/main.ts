// The `holdfast` command. It runs when it is imported: parse, dispatch, print, and set the exit code.

import '../runtime/node-version.ts'
import { readFileSync } from 'node:fs'
import { type ParseArgsOptionsConfig, parseArgs } from 'node:util'
import { isHoldfastError } from '../errors.ts'
import { withoutPassword } from '../store/postgres/connection/address.ts'
import { batch } from './batch.ts'
import { cancel } from './cancel.ts'
import { change } from './change.ts'
import { type Answer, type Command, Options, UsageError } from './command.ts'
import { deadGroups } from './dead-groups.ts'
import { deleteJob } from './delete.ts'
import { deleteQueue } from './delete-queue.ts'
import { doctor } from './doctor.ts'
import { enqueue } from './enqueue.ts'
import { explain } from './explain.ts'
import { flow } from './flow.ts'
import { gate } from './gate.ts'
import { commandHelp, globalOptions, helpText } from './help.ts'
import { inbox } from './inbox.ts'
import { job } from './job.ts'
import { jobs } from './jobs.ts'
import { kv } from './kv.ts'
import { limit } from './limit.ts'
import { migrate } from './migrate.ts'
import { pause } from './pause.ts'
import { queues } from './queues.ts'
import { releaseWorker } from './release-worker.ts'
import { reprioritise } from './reprioritise.ts'
import { requeue } from './requeue.ts'
import { reschedule } from './reschedule.ts'
import { resume } from './resume.ts'
import { schedule } from './schedule.ts'
import { schedules } from './schedules.ts'
import { LazyStore } from './store.ts'
import { sweep } from './sweep.ts'
import { Terminal } from './terminal.ts'
import { exitCodeOf, inFlags } from './typed.ts'
import { wake } from './wake.ts'
import { watch } from './watch.ts'
import { workers } from './workers.ts'

const commands: readonly Command[] = [
  ...[
    queues,
    jobs,
    job,
    deadGroups,
    explain,
    enqueue,
    pause,
    resume,
    limit,
    cancel,
    requeue,
    wake,
    reschedule,
    reprioritise,
    change,
    deleteJob,
    deleteQueue,
  ],
  ...[flow, batch, inbox, workers, releaseWorker, watch, sweep, doctor, schedules, schedule, gate, kv, migrate],
]

// The reader of standard output may close it early: `holdfast jobs | head`.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') throw error
  process.exit()
})

process.exitCode = await main(process.argv.slice(2))

async function main(args: readonly string[]): Promise<number> {
  const isJson = args.includes('--json')
  try {
    return await dispatch(args, isJson)
  } catch (error) {
    const text = isJson ? JSON.stringify({ error: errorData(error) }, null, 2) : `holdfast: ${errorText(error, args)}`
    const terminal = new Terminal(process.stderr, Date.now())
    terminal.output(hidePasswords(isJson ? text : terminal.fit(text)))
    return exitCodeOf(error)
  }
}

async function dispatch(args: readonly string[], isJson: boolean): Promise<number> {
  const terminal = new Terminal(process.stdout, Date.now())
  const { name, values: loose } = commandIn(args)
  const command = commands.find((each) => each.name === name)
  if (loose['version'] === true) return print(version())
  if (name !== undefined && !command) throw new UsageError(`There is no command "${name}"; holdfast --help lists them.`)
  if (!command) return loose['help'] === true ? print(helpText(commands, terminal)) : printUsage()
  if (loose['help'] === true) return print(commandHelp(command, terminal))

  const { values, operands } = parse(args, command)
  const url = (values['store'] as string | undefined) ?? process.env['HOLDFAST_STORE']
  const note = (text: string) => printTo(process.stderr, `holdfast: ${text}`)
  await using store = new LazyStore(url, { mayCreate: command.mayCreate?.(operands) ?? false, note })
  const answer = await command.run({
    url,
    open: (options) => store.open(options),
    operands,
    options: new Options(values),
    terminal,
    print: (data, text) => terminal.output(isJson ? JSON.stringify(data) : terminal.fit(text)),
    note,
  })
  return answer === null ? 0 : printAnswer(answer, { isJson, terminal })
}

/** The command's name may come after options. So the first parse knows the options of all commands and refuses nothing. */
function commandIn(args: readonly string[]): { name: string | undefined; values: Record<string, unknown> } {
  const all = Object.assign({}, ...commands.map((command) => command.options), globalOptions)
  const { values, positionals } = parseArgs({
    args: [...args],
    options: parserOptions(all),
    allowPositionals: true,
    strict: false,
  })
  return { name: positionals[0], values }
}

function flagsIn(args: readonly string[]): Command['options'] {
  const { name } = commandIn(args)
  return { ...commands.find((command) => command.name === name)?.options, ...globalOptions }
}

function parse(args: readonly string[], command: Command): { values: Record<string, unknown>; operands: string[] } {
  const see = `holdfast ${command.name} --help says more.`
  try {
    const options = parserOptions({ ...command.options, ...globalOptions })
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true })
    const operands = positionals.slice(1)
    const { min, max } = operandCount(command)
    if (operands.length < min || operands.length > max) {
      throw new UsageError(`Write: holdfast ${command.name} ${command.operands}`.trim())
    }
    return { values, operands }
  } catch (error) {
    if (error instanceof UsageError) throw error
    const [sentence = ''] = (error as Error).message.split('. ')
    throw new UsageError(`${sentence.replace(/\.$/, '')}; ${see}`)
  }
}

function operandCount({ operands }: Command): { min: number; max: number } {
  if (operands.includes('|')) return { min: 1, max: Math.max(3, ...operands.split(' | ').map(wordsIn)) }
  const min = operands.match(/<\w+>/g)?.length ?? 0
  return { min, max: min + (operands.match(/\[\w+\]/g)?.length ?? 0) }
}

function wordsIn(form: string): number {
  return form.split(' ').length
}

function parserOptions(options: Command['options']): ParseArgsOptionsConfig {
  return Object.fromEntries(
    Object.entries(options).map(([name, { value, multiple }]) => [
      name,
      {
        type: value === undefined ? 'boolean' : 'string',
        multiple: multiple === true,
        ...(name === 'help' && { short: 'h' }),
      },
    ]),
  )
}

function print(text: string): number {
  printTo(process.stdout, text)
  return 0
}

function printUsage(): number {
  const terminal = new Terminal(process.stderr, Date.now())
  terminal.output(terminal.fit(helpText(commands, terminal)))
  return 2
}

interface Printing {
  readonly isJson: boolean
  readonly terminal: Terminal
}

function printAnswer(answer: Answer, { isJson, terminal }: Printing): number {
  const { data, text, isVerbatim = false, isMissing = false, hasFailed = false } = answer
  if (isJson) terminal.output(JSON.stringify(data, null, 2))
  else if (isMissing) printTo(process.stderr, `holdfast: ${text}`)
  else terminal.output(isVerbatim ? text : terminal.fit(text))
  return isMissing || hasFailed ? 1 : 0
}

function printTo(stream: NodeJS.WriteStream, text: string): void {
  const terminal = new Terminal(stream, Date.now())
  terminal.output(terminal.fit(text))
}

function errorText(error: unknown, args: readonly string[]): string {
  if (isHoldfastError(error)) return `${inFlags(error, flagsIn(args))} (${error.code})`
  if (error instanceof UsageError) return error.message
  // An unexpected error: its stack helps more than a short text.
  return error instanceof Error ? (error.stack ?? error.message) : String(error)
}

/** In every error, because the URL of a store may have been given in the wrong place. */
function hidePasswords(text: string): string {
  return text.replace(/\S+/g, withoutPasswordOfUrl).replace(/[?&]password=[^&\s"]*/gi, withoutPassword)
}

function withoutPasswordOfUrl(word: string): string {
  const start = word.search(/\w:\/\//)
  const end = word.lastIndexOf('@') + 1
  return start < 0 || end <= start
    ? word
    : word.slice(0, start) + withoutPassword(word.slice(start, end)) + word.slice(end)
}

function errorData(error: unknown): Record<string, unknown> {
  if (isHoldfastError(error)) return { code: error.code, message: error.message, facts: error.facts }
  const message = error instanceof Error ? error.message : String(error)
  return { code: error instanceof UsageError ? 'USAGE' : 'UNEXPECTED', message }
}

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8'))
  return (manifest as { version: string }).version
}
