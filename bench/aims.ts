// The aims of Holdfast, beside what was measured. They are reported, never asserted.

import type { Line, Section, Unit } from './report.ts'
import { median } from './statistics.ts'

export interface Aim {
  readonly name: string
  readonly unit: Unit
  readonly aim: number
  readonly isMost?: boolean
  /** One figure a round. */
  readonly figures: readonly number[]
}

export function aimsSection(aims: readonly Aim[]): Section {
  return {
    title: 'Aims',
    columns: ['aim', 'here'],
    lines: aims.map(toLine),
  }
}

function toLine({ name, unit, aim, isMost = false, figures }: Aim): Line {
  const here = median(figures)
  const isMet = isMost ? here <= aim : here >= aim
  return {
    name: `${name}, at ${isMost ? 'most' : 'least'}`,
    unit,
    rounds: { aim: [aim], here: figures },
    annotation: isMet ? 'met' : 'NOT MET',
  }
}
