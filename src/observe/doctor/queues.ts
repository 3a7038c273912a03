// Queues without a worker. A worker that dies does not report it. The sign is that jobs wait for long while none runs.

import { span } from '../../runtime/duration.ts'
import { counted, fine, warning, wrong } from '../../store/findings.ts'
import type { Finding, QueueStats } from '../../store/store.ts'
import type { Patient } from './doctor.ts'

export async function unattendedQueues({ store, request }: Patient): Promise<Finding[]> {
  const queues = await store.stats()
  const late = queues.filter(({ oldestWaitingMs }) => (oldestWaitingMs ?? 0) > request.patienceMs)
  if (late.length === 0)
    return [fine('queues', `${counted(queues.length, 'queue')}, and no ready job has waited for long.`)]
  return late.map(findingOf)
}

function findingOf({ queue, paused, pausedUntil, counts, oldestWaitingMs }: QueueStats): Finding {
  const { ready, running } = counts
  const waits = `${counted(ready, 'job')} of queue ${queue} ${ready === 1 ? 'waits' : 'wait'}, the oldest for ${span(oldestWaitingMs ?? 0)}`
  const facts = { queue, ready, running, oldestWaitingMs }
  if (paused)
    return warning(
      'queue-paused',
      `${waits}, and the queue is paused${pausedUntil === null ? '' : ` until ${new Date(pausedUntil).toISOString()}`}.`,
      `If it should run again: holdfast resume ${queue}.`,
      facts,
    )
  if (running === 0)
    return wrong(
      'queue-unattended',
      `${waits}, and none is running: there is no worker for this queue, or it is stuck.`,
      `Start a worker for ${queue}, and read the logs of the workers that should be running.`,
      facts,
    )
  return warning(
    'queue-behind',
    `${waits}, while ${running.toLocaleString('en')} run: workers do not keep up.`,
    'Add workers or raise their concurrency; holdfast jobs shows what is ahead.',
    facts,
  )
}
