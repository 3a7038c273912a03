// The text of `--help`, made from the descriptions of the commands.

import type { Command, Option } from './command.ts'
import { type Terminal, wrapped } from './terminal.ts'

export const globalOptions: Readonly<Record<string, Option>> = {
  store: {
    value: 'url',
    says: 'which store: sqlite:jobs.db, postgres://host/database?schema=name; HOLDFAST_STORE unless given',
  },
  json: { says: 'print JSON, also for errors' },
  help: { says: 'print this text; after a command, the text of that command' },
  version: { says: 'print the version of this package' },
}

export function helpText(commands: readonly Command[], terminal: Terminal): string {
  const width = helpWidth(terminal)
  const rows: [string, string][] = commands.map(({ name, operands, says }) => [
    `${name} ${shortOf(operands)}`.trim(),
    says,
  ])
  return `Holdfast: inspect and control a store of jobs.

Usage: holdfast <command> [options]

Commands:
${aligned(rows, width)}

Options:
${aligned(optionRows(globalOptions), width)}

holdfast <command> --help says more. Exit codes: 0 success, 1 failure, 2 wrong usage.`
}

/** The verbs of a command that has any: `get|put|delete|scan`. */
function shortOf(operands: string): string {
  const verbs = operands.split(' | ').map((each) => each.split(' ')[0])
  return verbs.length > 1 ? verbs.join('|') : operands
}

export function commandHelp({ name, operands, says, options, examples }: Command, terminal: Terminal): string {
  const width = helpWidth(terminal)
  const own = optionRows(options)
  return `${wrapped(`holdfast ${name}: ${says}.`, width).join('\n')}

${usageOf(name, operands)}

Options:
${aligned([...own, ...optionRows(globalOptions).slice(0, 2)], width)}

Examples:
${examples.map((example) => `  ${example}`).join('\n')}`
}

function optionRows(options: Readonly<Record<string, Option>>): [string, string][] {
  return Object.entries(options).map(([name, { value, says }]) => [
    value === undefined ? `--${name}` : `--${name} <${value}>`,
    says,
  ])
}

/** One line for each verb of a command that has any. */
function usageOf(name: string, operands: string): string {
  const forms = operands.split(' | ').map((form) => `holdfast ${name} ${form}`.trimEnd())
  return forms.map((form, i) => `${i === 0 ? 'Usage:' : '      '} ${form} [options]`).join('\n')
}

/** Help that goes to a pager or a file has the usual width of a terminal. */
function helpWidth({ width }: Terminal): number {
  return Number.isFinite(width) ? Math.min(width, 100) : 80
}

const leftMax = 26

/** Two columns. The text of a long entry begins on the line below it. */
function aligned(rows: readonly (readonly [string, string])[], width: number): string {
  const left = Math.min(leftMax, Math.max(...rows.map(([entry]) => entry.length)))
  const indent = ' '.repeat(left + 4)
  return rows
    .map(([entry, says]) => {
      const text = wrapped(says, width - indent.length).join(`\n${indent}`)
      return entry.length <= left ? `  ${entry.padEnd(left)}  ${text}` : `  ${entry}\n${indent}${text}`
    })
    .join('\n')
}
