import type { ScheduleInfo } from '../schedule/info.ts'
import type { Command } from './command.ts'
import { oneLine, type Terminal } from './terminal.ts'

export const schedules: Command = {
  name: 'schedules',
  operands: '',
  says: 'list every schedule: when it fires next, when it last fired, and when a program last declared it',
  options: {},
  examples: ['holdfast schedules', 'holdfast schedules --json'],

  async run({ open, terminal }) {
    const infos = await (await open()).schedules()
    return { data: infos, text: infos.length === 0 ? 'There are no schedules.' : tableOf(infos, terminal) }
  },
}

function tableOf(infos: readonly ScheduleInfo[], terminal: Terminal): string {
  const columns = ['SCHEDULE', 'CRON', 'QUEUE', 'NEXT', 'LAST', 'DECLARED'].map((title) => ({ title }))
  const none = terminal.paint('dim', '·')
  return terminal.table(
    columns,
    infos.map(({ name, cron, timeZone, queue, paused, nextAt, overdueSince, lastSlot, declaredAt }) => [
      oneLine(name),
      oneLine(timeZone === 'UTC' ? cron : `${cron} ${timeZone}`),
      oneLine(queue),
      nextOf(paused, overdueSince, nextAt),
      lastSlot === null ? none : terminal.distance(lastSlot),
      terminal.distance(declaredAt),
    ]),
  )

  function nextOf(paused: boolean, overdueSince: Date | null, nextAt: Date | null): string {
    if (paused) return terminal.paint('yellow', 'paused')
    if (overdueSince) return terminal.paint('red', `due ${terminal.distance(overdueSince)}`)
    return nextAt === null ? none : terminal.distance(nextAt)
  }
}
