// The trace of a violation: every note about the jobs that it names, and how those jobs ended.

import type { Note } from './journal.ts'
import type { Findings } from './judge.ts'

const linesMax = 40
const names = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[a-z]+\d+x\d+-[\w-]+/g

export function traceOf(fault: string, { notes, left, conditions }: Findings): string[] {
  const named = new Set(fault.match(names) ?? [])
  const isAbout = (value: unknown) => {
    const text = JSON.stringify(value)
    return [...named].some((name) => text.includes(name))
  }
  const about = notes.filter(({ asked, answer }) => isAbout([asked, answer])).sort((a, b) => a.at - b.at)
  const jobs = left.jobs.filter(({ id, payload }) => isAbout([id, payload]))
  const times = [...conditions.crashes, ...conditions.jumps.map(({ at }) => at)]
  const crashes = times.map((at) => ({ at, line: `${at.toFixed(1)} the store crashed, or its clock was set` }))
  const first = about[0]?.at ?? 0
  const last = about.at(-1)?.answeredAt ?? about.at(-1)?.at ?? 0
  const lines = [
    ...about.map((note) => ({ at: note.at, line: lineOf(note, isAbout) })),
    ...crashes.filter(({ at }) => at >= first && at <= last),
  ]
  return [
    ...lines.sort((a, b) => a.at - b.at).map(({ line }) => line),
    ...jobs.map(({ id, queue, state, attempts, history }) => {
      const runs = history.map(({ attempt, worker, ending }) => `${attempt} ${worker} ${ending}`)
      return `${id} in ${queue} is ${state}, ${attempts} attempts: ${runs.join('; ') || 'never ran'}`
    }),
  ].slice(0, linesMax)
}

function lineOf({ verb, asked, at, answer, answeredAt, refused }: Note, isAbout: (value: unknown) => boolean): string {
  const result = refused ?? (answer === null ? 'unknown' : shown(answer, isAbout))
  return `${at.toFixed(1)} ${verb} ${shown(asked, isAbout)} → ${result}${answeredAt ? ` at ${answeredAt.toFixed(1)}` : ''}`
}

/** Long lists are cut to the entries about these jobs. */
function shown(value: unknown, isAbout: (value: unknown) => boolean): string {
  return JSON.stringify(value, (_, each) =>
    Array.isArray(each) && each.length > 3 ? each.filter((one) => typeof one !== 'object' || isAbout(one)) : each,
  )
}
