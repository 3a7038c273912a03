// What a job costs beside time: WAL, statements, processor time of this process.

import { batch, cycle, drainAll, fill } from './contender.ts'
import type { Cost } from './meter.ts'
import { type ContenderName, contenders, measured } from './postgres-contenders.ts'
import type { Measured, Place } from './postgres-place.ts'
import type { Line } from './report.ts'
import { takeTurns } from './rounds.ts'

const names = Object.keys(contenders) as ContenderName[]
const jobsMax = 20_000
const roundsMax = 2
const columns = { walBytes: 'WAL bytes', statements: 'statements', clientUs: 'client µs' } as const

export async function costSection({ url, sizes }: Place): Promise<Measured> {
  const jobs = Math.min(sizes.jobs, jobsMax)
  const phases = {
    enqueue: (name: ContenderName) =>
      measured(url, { name, jobs, finish: drainAll }, (contender, ledger) => fill(contender, ledger, jobs, batch)),
    drain: (name: ContenderName) => measured(url, { name, jobs, prepare: fill }, drainAll),
    cycle: (name: ContenderName) => measured(url, { name, jobs }, cycle),
  }
  const lines: Line[] = []
  for (const [phase, measure] of Object.entries(phases)) {
    const sides = names.map((name) => [name, async () => figures(await measure(name))] as const)
    const taken = await takeTurns(`costs, ${phase}`, Math.min(sizes.rounds, roundsMax), Object.fromEntries(sides))
    for (const name of names) {
      const rounds = Object.entries(columns).map(([key, column]) => [column, taken[key]?.[name] ?? []])
      lines.push({ name: `${phase}: ${name}`, unit: 'count', rounds: Object.fromEntries(rounds) })
    }
  }
  const section = {
    title: `Costs of a job, in batches of ${batch}`,
    note: 'WAL of the whole server. Statements are counted as sent, including those of sweeps and wake-ups.',
    columns: Object.values(columns),
    lines,
  }
  return { sections: [section], aims: [] }
}

function figures({ walBytes, statements, clientUs }: Cost): Record<string, number> {
  return { walBytes, statements, clientUs }
}
