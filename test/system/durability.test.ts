// Which calls wait for the disk, seen from the kernel. An answer that promises to survive a loss of power comes after a sync. An
// answer without that promise comes without a sync.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { open } from '../../src/open.ts'
import { type DiskEvent, traceDisk } from '../support/disk-trace.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { needs } from '../support/system.ts'

const program = join(import.meta.dirname, '../sqlite/programs/marks.ts')
const skip = needs('strace')

describe('sqlite', { skip }, () => {
  test('enqueue, settle, kv writes and control were synced before they were answered', async () => {
    const steps = syncsBefore(await traceDisk(program, ['durable']))
    assert.deepEqual(Object.keys(steps), [
      ...['enqueue', 'enqueueMany', 'done', 'retry', 'dead', 'release', 'snooze', 'cancelled'],
      ...['put', 'compareAndSet', 'delete', 'requeue', 'cancel', 'pause', 'resume', 'define', 'end'],
    ])
    const { end: _, ...durable } = steps
    for (const [step, syncs] of Object.entries(durable)) assert.ok(syncs >= 1, `${step} was not synced`)
  })

  test('claim, renew, sweep and reads wait for no sync', async () => {
    assert.deepEqual(syncsBefore(await traceDisk(program, ['quick'])), {
      claim: 0,
      renew: 0,
      'sweep promoted 1, cancelled 1': 0,
      'sweep rescued 3': 0,
      'sweep pruned 1': 0,
      read: 0,
      end: 0,
    })
  })

  test('a claim waits for no sync even if it is the first write after the file was opened', async () => {
    await using scratch = await scratchDirectory()
    const path = join(scratch.path, 'jobs.db')
    await using holdfast = await open(`sqlite:${path}`)
    await holdfast.queue('mail').enqueue(1)
    await holdfast.close()
    assert.deepEqual(syncsBefore(await traceDisk(program, ['first', path])), { claim: 0, end: 0 })
  })

  test('a claim waits for no sync even if it is the first write after a checkpoint of the log', async () => {
    const steps = Object.entries(syncsBefore(await traceDisk(program, ['restarted'])))
    const claims = steps.filter(([step]) => step.startsWith('claim'))
    assert.deepEqual(
      claims,
      [1, 2, 3, 4, 5, 6].map((n) => [`claim ${n}`, 0]),
    )
  })
})

/** How many syncs there were between each mark and the mark before it, from `start` on. */
function syncsBefore(events: readonly DiskEvent[]): Record<string, number> {
  const steps: Record<string, number> = {}
  let syncs = 0
  for (const event of events.slice(events.indexOf('mark: start') + 1)) {
    if (event === 'sync') syncs += 1
    else {
      steps[event.slice('mark: '.length)] = syncs
      syncs = 0
    }
  }
  return steps
}
