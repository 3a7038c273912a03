import type { Command } from './command.ts'
import { oneLine } from './terminal.ts'

export const workers: Command = {
  name: 'workers',
  operands: '',
  says: 'list every worker that has reported within the last minute',
  options: {},
  examples: ['holdfast workers'],

  async run({ open, terminal }) {
    const found = await (await open()).workers()
    const columns = [
      ...[{ title: 'WORKER' }, { title: 'HOST' }, { title: 'PID', align: 'right' as const }],
      ...[{ title: 'AT ONCE', align: 'right' as const }, { title: 'SINCE' }, { title: 'QUEUES' }],
    ]
    const rows = found.map(({ name, host, pid, concurrency, since, queues }) => [
      ...[oneLine(name), oneLine(host), String(pid), String(concurrency), terminal.distance(since)],
      queues === null ? 'all' : queues.join(', '),
    ])
    const none = 'No worker has reported within the last minute.'
    return { data: found, text: found.length === 0 ? none : terminal.table(columns, rows) }
  },
}
