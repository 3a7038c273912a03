import type { QueueInfo } from '../client/queues.ts'
import type { JobState } from '../job/record.ts'
import { span } from '../runtime/duration.ts'
import type { Command } from './command.ts'
import { limitsText } from './limit.ts'
import type { Column, Terminal } from './terminal.ts'

export const queues: Command = {
  name: 'queues',
  operands: '',
  says: 'count the jobs of every queue by state, exact at any size',
  options: {},
  examples: ['holdfast queues', 'holdfast queues --json'],

  async run({ open, terminal }) {
    const infos = await (await open()).queues()
    return { data: infos, text: infos.length === 0 ? 'There are no queues yet.' : tableOf(infos, terminal) }
  },
}

function tableOf(infos: readonly QueueInfo[], terminal: Terminal): string {
  const states: JobState[] = ['ready', 'running', 'scheduled', 'held', 'done', 'dead', 'cancelled']
  const shown = states.filter((state) => state !== 'held' || infos.some((info) => info.held > 0))
  const hasLimits = infos.some(isLimited)
  const columns: Column[] = [
    { title: 'QUEUE' },
    ...shown.map((state) => ({ title: state.toUpperCase(), align: 'right' }) as const),
    { title: 'OLDEST WAITING', align: 'right' },
    ...(hasLimits ? [{ title: 'LIMITS' }] : []),
  ]
  const rows = infos.map((info) => [
    info.paused ? `${info.name} ${terminal.paint('yellow', pausedText(info))}` : info.name,
    ...shown.map((state) => terminal.count(info[state], styles[state])),
    info.oldestWaitingMs === null ? terminal.paint('dim', '·') : span(info.oldestWaitingMs),
    ...(hasLimits ? [isLimited(info) ? limitsText(info) : terminal.paint('dim', '·')] : []),
  ])
  return terminal.table(columns, rows)
}

function pausedText({ pausedUntil }: QueueInfo): string {
  return pausedUntil === null ? '(paused)' : `(paused, ${span(Math.max(0, pausedUntil.getTime() - Date.now()))} left)`
}

function isLimited({ limit, keyLimit, limitOverride }: QueueInfo): boolean {
  return limit !== null || keyLimit !== null || limitOverride !== null
}

const styles: Readonly<Partial<Record<JobState, 'red' | 'cyan'>>> = { dead: 'red', running: 'cyan' }
