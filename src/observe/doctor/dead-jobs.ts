// Dead jobs. They threaten nothing and are removed after their retention, so they are no warning. They are shown to an
// operator all the same. The counts are exact and cost no walk over rows. Of each queue only the newest death is read.

import { span } from '../../runtime/duration.ts'
import { counted } from '../../store/findings.ts'
import type { Finding, QueueStats } from '../../store/store.ts'
import type { Patient } from './doctor.ts'

/** Queues with a finding of their own; the others are counted together. */
const queuesMax = 10

export async function deadJobs({ store }: Patient): Promise<Finding[]> {
  const queues = (await store.stats()).filter(({ counts }) => counts.dead > 0)
  if (queues.length === 0) return []
  const worst = queues.toSorted((a, b) => b.counts.dead - a.counts.dead)
  const now = await store.time()
  const found: Finding[] = []
  for (const stats of worst.slice(0, queuesMax)) found.push(await findingOf(store, stats, now))
  const rest = worst.slice(queuesMax)
  return rest.length === 0 ? found : [...found, restOf(rest)]
}

async function findingOf(store: Patient['store'], { queue, counts }: QueueStats, now: number): Promise<Finding> {
  const { jobs } = await store.find({
    filter: { queues: [queue], states: ['dead'] },
    limit: 1,
    after: null,
    include: [],
  })
  const diedAt = jobs[0]?.finishedAt ?? null
  const message = jobs[0]?.error?.message.split('\n', 1)[0] ?? null
  const last =
    diedAt === null ? '' : `, the last one ${span(now - diedAt)} ago${message === null ? '' : `: ${message}`}`
  return {
    id: 'dead-jobs',
    severity: 'fine',
    sentence: `${counted(counts.dead, 'dead job')} in queue ${queue}${last}`.replace(/[.]?$/, '.'),
    fix: `holdfast jobs --queue ${queue} --state dead lists them. Once the cause is gone: holdfast requeue --queue ${queue}, or holdfast delete --queue ${queue} --state dead.`,
    facts: { queue, dead: counts.dead, diedAt, error: message },
  }
}

function restOf(queues: readonly QueueStats[]): Finding {
  const dead = queues.reduce((sum, { counts }) => sum + counts.dead, 0)
  return {
    id: 'dead-jobs',
    severity: 'fine',
    sentence: `${counted(dead, 'dead job')} in ${counted(queues.length, 'other queue')}.`,
    fix: 'holdfast queues shows them by queue.',
    facts: { queue: null, dead, queues: queues.map(({ queue }) => queue).slice(0, 100) },
  }
}
