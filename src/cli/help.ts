// The text of `--help`, made from the descriptions of the commands.

import type { Command, Option } from './command.ts'

export const globalOptions: Readonly<Record<string, Option>> = {
  store: {
    value: 'url',
    says: 'which store: sqlite:jobs.db, postgres://host/database?schema=name; HOLDFAST_STORE unless given',
  },
  json: { says: 'print JSON, also for errors' },
  help: { says: 'print this text; after a command, the text of that command' },
  version: { says: 'print the version of this package' },
}

export function helpText(commands: readonly Command[]): string {
  const rows: [string, string][] = commands.map(({ name, operands, says }) => [
    `${name} ${shortOf(operands)}`.trim(),
    says,
  ])
  return `Holdfast: inspect and control a store of jobs.

Usage: holdfast <command> [options]

Commands:
${aligned(rows)}

Options:
${aligned(optionRows(globalOptions))}

holdfast <command> --help says more. Exit codes: 0 success, 1 failure, 2 wrong usage.`
}

/** The verbs of a command that has any: `get|put|delete|scan`. */
function shortOf(operands: string): string {
  const verbs = operands.split(' | ').map((each) => each.split(' ')[0])
  return verbs.length > 1 ? verbs.join('|') : operands
}

export function commandHelp({ name, operands, says, options, examples }: Command): string {
  const own = optionRows(options)
  return `holdfast ${name}: ${says}.

Usage: holdfast ${name}${operands ? ` ${operands}` : ''} [options]

Options:
${aligned([...own, ...optionRows(globalOptions).slice(0, 2)])}

Examples:
${examples.map((example) => `  ${example}`).join('\n')}`
}

function optionRows(options: Readonly<Record<string, Option>>): [string, string][] {
  return Object.entries(options).map(([name, { value, says }]) => [
    value === undefined ? `--${name}` : `--${name} <${value}>`,
    says,
  ])
}

function aligned(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([left]) => left.length))
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`).join('\n')
}
