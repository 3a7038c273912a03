// Two questions that only SQLite raises: what its own thread gains, and how fast a table without any promises would be.

import { monitorEventLoopDelay } from 'node:perf_hooks'
import type { Holdfast } from '../src/index.ts'
import { rate, thousands, time } from './lines.ts'
import { benchQueue, cycleOverlapped, enqueueSingly, pause } from './load.ts'
import { SmallestQueue } from './raw-sqlite.ts'
import type { Line, Section } from './report.ts'
import { perSecond, takeTurns } from './rounds.ts'
import { callers, type Files, finished, group, type Sizes, small, waiting } from './sqlite-files.ts'

/** Why the store has a thread of its own: the same load in this thread, and how much it delays this thread's event loop. */
export async function threadSection(files: Files, { jobs, singles, rounds }: Sizes): Promise<Section[]> {
  const loads = {
    cycle: {
      count: jobs,
      contents: finished(jobs),
      run: (h: Holdfast) => cycleOverlapped(benchQueue(h), { jobs, group }),
    },
    single: {
      count: singles,
      contents: waiting(singles),
      run: (h: Holdfast) => enqueueSingly(benchQueue(h), { jobs: singles, callers }),
    },
  }
  const side = (inThread: boolean) => async () => {
    const figures: Record<string, number> = {}
    for (const [name, { count, contents, run }] of Object.entries(loads)) {
      const load = (holdfast: Holdfast) => watched(count, () => run(holdfast))
      for (const [measure, figure] of Object.entries(await files.holdfast(contents, load, 0, inThread))) {
        figures[`${name} ${measure}`] = figure
      }
    }
    return figures
  }
  const taken = await takeTurns('own thread and in-thread', rounds, {
    'own thread': side(false),
    'in-thread': side(true),
  })
  const lines = (load: string, name: string): Line[] => [
    rate(load, taken[`${name} rate`]),
    time('  event loop delay p99', taken[`${name} delay p99`], 'ms'),
    time('  event loop delay max', taken[`${name} delay max`], 'ms'),
    time('  processor time a job, all threads', taken[`${name} cpu`], 'µs'),
  ]
  return [
    {
      title: 'The store in its own thread, and in the thread of the application',
      note: 'Delay: how late the timers of the application are. In-thread, the event loop waits for the disk, and callers that continue at once leave no turn for timers.',
      columns: ['own thread', 'in-thread'],
      ratio: { of: 'own thread', to: 'in-thread' },
      lines: [
        ...lines(`full cycle, groups of ${thousands(group)}, overlapped`, 'cycle'),
        ...lines(`single enqueue, ${callers} callers`, 'single'),
      ],
    },
  ]
}

export async function smallestSection(files: Files, { jobs, oneByOne, rounds }: Sizes): Promise<Section[]> {
  const side = (size: number, count: number) => async () => {
    const measure = async (work: (queue: SmallestQueue) => void) => {
      const path = files.next()
      using queue = new SmallestQueue(path)
      const figure = await perSecond(count, () => {
        for (let sent = 0; sent < count; sent += size) work(queue)
      })
      files.remove(path)
      return figure
    }
    return { insert: await measure((queue) => queue.insert(size)), cycle: await measure((queue) => queue.cycle(size)) }
  }
  const columns = { 'one by one': side(1, oneByOne), 'by 100': side(small, jobs), 'by 1,000': side(group, jobs) }
  const taken = await takeTurns('the smallest queue', rounds, columns)
  return [
    {
      title: 'For orientation: raw node:sqlite, one narrow table, no index, none of the promises',
      columns: Object.keys(columns),
      lines: [rate('insert', taken['insert']), rate('insert, update, delete', taken['cycle'])],
    },
  ]
}

async function watched(count: number, work: () => Promise<void>): Promise<Record<string, number>> {
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  await pause(5) // it measures from one turn of the loop to the next, so it needs one before the load and one after
  const before = process.cpuUsage()
  const rate = await perSecond(count, work)
  const { user, system } = process.cpuUsage(before)
  await pause(5)
  delay.disable()
  return { rate, 'delay p99': delay.percentile(99) / 1e6, 'delay max': delay.max / 1e6, cpu: (user + system) / count }
}
