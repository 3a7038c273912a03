// The findings of the doctor as a list: what is wrong first, each with its fix. Exit code 1 if anything is wrong.

import { isHoldfastError } from '../errors.ts'
import type { DoctorOptions } from '../observe/doctor/doctor.ts'
import { counted, wrong } from '../store/findings.ts'
import type { Finding, Severity } from '../store/store.ts'
import { type Call, type Command, given } from './command.ts'
import { oneLine, type Terminal } from './terminal.ts'

export const doctor: Command = {
  name: 'doctor',
  operands: '',
  says: 'find what threatens the jobs of a store or slows them down, and say what to do about it',
  options: {
    fix: {
      says: 'repair what can be repaired: counts, jobs that no claim would find, overdue sweeps, changed functions',
    },
    full: { says: 'examine every row: recount however many jobs there are, check a SQLite file in full' },
    patience: {
      value: 'duration',
      says: 'how long something may wait or stay open before it is reported; 5m unless given',
    },
  },
  examples: ['holdfast doctor', 'holdfast doctor --fix', 'holdfast doctor --full --json'],

  async run(call) {
    const findings = await findingsOf(call)
    return {
      data: { ...tally(findings), findings },
      text: textOf(findings, call.terminal),
      hasFailed: has(findings, 'wrong'),
    }
  },
}

/** Without --fix nothing is changed: no schema is upgraded, no restored store healed. An old schema is a finding. */
async function findingsOf({ open, options }: Call): Promise<readonly Finding[]> {
  const asked: DoctorOptions = {
    fix: options.isSet('fix'),
    full: options.isSet('full'),
    ...given({ patience: options.duration('patience') }),
  }
  try {
    return await (await open({ readOnly: !options.isSet('fix') })).doctor(asked)
  } catch (error) {
    if (!isHoldfastError(error) || !['STORE_UNAVAILABLE', 'SCHEMA_AHEAD'].includes(error.code)) throw error
    const facts = { code: error.code, ...error.facts }
    return [wrong('cannot-open', error.message, 'Fix this first; nothing else can be examined before.', facts)]
  }
}

function tally(findings: readonly Finding[]): Record<Severity, number> {
  const count = (severity: Severity) => findings.filter((finding) => finding.severity === severity).length
  return { wrong: count('wrong'), warning: count('warning'), fine: count('fine') }
}

function has(findings: readonly Finding[], severity: Severity): boolean {
  return findings.some((finding) => finding.severity === severity)
}

const marks: Readonly<Record<Severity, readonly ['red' | 'yellow' | 'green', string]>> = {
  wrong: ['red', '✗'],
  warning: ['yellow', '!'],
  fine: ['green', '✓'],
}

/** In this order: what needs action, what was repaired, and what is fine. */
function textOf(findings: readonly Finding[], terminal: Terminal): string {
  const isRepaired = ({ repaired }: Finding) => repaired === true
  const isBad = ({ severity }: Finding) => severity !== 'fine'
  const groups = [
    findings.filter(isBad),
    findings.filter(isRepaired),
    findings.filter((finding) => !isBad(finding) && !isRepaired(finding)),
  ]
  const shown = groups
    .filter((group) => group.length > 0)
    .map((group) => group.map((finding) => paragraph(finding, terminal)).join('\n'))
  return [...shown, summary(tally(findings), terminal)].join('\n\n')
}

function paragraph({ id, severity, sentence, fix, repaired }: Finding, terminal: Terminal): string {
  const [style, mark] = marks[severity]
  const text = terminal.wrap(oneLine(repaired ? `Repaired: ${sentence}` : sentence), 2)
  const name = severity === 'fine' ? '' : terminal.paint('dim', ` [${id}]`)
  const head = `${terminal.paint(style, mark)} ${text}${name}`
  return fix === undefined ? head : `${head}\n  ${terminal.paint('cyan', '→')} ${terminal.wrap(oneLine(fix), 4)}`
}

function summary({ wrong: bad, warning: odd, fine: good }: Record<Severity, number>, terminal: Terminal): string {
  if (bad + odd === 0) return terminal.paint('green', `All is well: ${counted(good, 'check')}, all fine.`)
  const parts = [
    bad > 0 && terminal.paint('red', `${bad} wrong`),
    odd > 0 && terminal.paint('yellow', counted(odd, 'warning')),
    `${good} fine`,
  ]
  return `${parts.filter(Boolean).join(', ')}.`
}
