// The full cycle and the drain: Holdfast compared with every raw queue, in turns.

import type { Aim } from './aims.ts'
import { batch, cycle, cycleInTurn, drainAll, fill } from './contender.ts'
import { thousands } from './lines.ts'
import { type ContenderName, contenders, measured, rawNote } from './postgres-contenders.ts'
import type { Place } from './postgres-place.ts'
import type { Section } from './report.ts'
import { takeTurns } from './rounds.ts'
import { ratios } from './statistics.ts'

const names = Object.keys(contenders) as ContenderName[]
const cycleAim = 0.8

export async function cycleSection({ url, sizes }: Place) {
  const { jobs, rounds } = sizes
  const taken = await rates('full cycle', rounds, (name) => measured(url, { name, jobs }, cycle))
  const inTurn = await rates('full cycle in turn', rounds, (name) => measured(url, { name, jobs }, cycleInTurn))
  const title = `Full cycle: insert, claim and settle, batches of ${batch}`
  return {
    sections: [
      compared(`${title}, steady state`, taken, {
        note: `Aim: at least ${cycleAim} of the bare cursor. One producer beside two loops that claim and settle; ${thousands(jobs)} jobs a round.`,
        annotations: true,
      }),
      compared(`${title}, in turn`, inTurn, {
        note: 'Two loops, each of which enqueues a batch, claims one and settles it: no loop waits for a producer.',
        annotations: false,
      }),
    ],
    aims: [...cycleAims('full cycle', taken), ...cycleAims('in turn', inTurn)],
  }
}

export async function drainSection({ url, sizes }: Place) {
  const { jobs, rounds } = sizes
  const taken = await rates('drain', rounds, (name) => measured(url, { name, jobs, prepare: fill }, drainAll))
  const section = compared(`Drain of a backlog: claim and settle ${thousands(jobs)} jobs, batches of ${batch}`, taken, {
    note: 'Two loops that claim and settle.',
    annotations: false,
  })
  return { sections: [section], aims: [] }
}

type Rates = Readonly<Record<string, readonly number[]>>

async function rates(
  title: string,
  rounds: number,
  measure: (name: ContenderName) => Promise<{ readonly rate: number }>,
): Promise<Rates> {
  const side = (name: ContenderName) => async () => ({ rate: (await measure(name)).rate })
  const taken = await takeTurns(title, rounds, Object.fromEntries(names.map((name) => [name, side(name)])))
  return taken['rate'] ?? {}
}

function compared(title: string, taken: Rates, { note, annotations }: { note: string; annotations: boolean }): Section {
  const toToken = 'to bare cursor'
  const toPlace = 'to it by place'
  return {
    title,
    note: `${note} ${rawNote}`,
    columns: ['rate', toToken, toPlace],
    units: { [toToken]: 'ratio', [toPlace]: 'ratio' },
    lines: names.map((name) => ({
      name,
      unit: 'jobs/s',
      rounds: {
        rate: taken[name] ?? [],
        [toToken]: ratios(taken[name] ?? [], taken['bare cursor'] ?? []),
        [toPlace]: ratios(taken[name] ?? [], taken['bare cursor, by place'] ?? []),
      },
      ...(annotations && { annotation: contenders[name] }),
    })),
  }
}

function cycleAims(title: string, taken: Rates): Aim[] {
  const sides = ['holdfast, nothing kept', 'holdfast, history kept'] as const
  const references = ['bare cursor', 'bare cursor, by place'] as const
  return sides.flatMap((side) =>
    references.map((reference) => ({
      name: `${title}: ${side} to ${reference}`,
      unit: 'ratio' as const,
      aim: cycleAim,
      figures: ratios(taken[side] ?? [], taken[reference] ?? []),
    })),
  )
}
