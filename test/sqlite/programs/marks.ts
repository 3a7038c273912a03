// Makes one call after the other and prints a mark after each answer, for a test that traces disk writes meanwhile.
//   marks.ts durable | quick | first <path> | restarted
import { writeSync } from 'node:fs'
import { open } from '../../../src/open.ts'
import { VirtualClock } from '../../../src/testing/index.ts'

const [what = '', path = 'jobs.db'] = process.argv.slice(2)
const mark = (name: string) => writeSync(1, `mark: ${name}\n`)

const clock = new VirtualClock()
const holdfast = await open(`sqlite:${path}`, { clock })
const mail = holdfast.queue('mail')
const numbers = (count: number) => Array.from({ length: count }, (_, payload) => ({ payload }))

const programs: Record<string, () => Promise<void>> = {
  /** Every call whose answer promises that the write survives a loss of power. */
  async durable() {
    await mail.enqueueMany(numbers(9))
    const [done, retried, dead, released, snoozed, cancelled] = await mail.claim({ max: 6 })
    mark('start')
    await mail.enqueue(1)
    mark('enqueue')
    await mail.enqueueMany(numbers(10))
    mark('enqueueMany')
    await done?.done('result', { put: [{ key: 'effect', value: 1 }], enqueue: [{ queue: 'post', payload: 1 }] })
    mark('done')
    await retried?.retry(new Error('no'))
    mark('retry')
    await dead?.dead(new Error('no'))
    mark('dead')
    await released?.release()
    mark('release')
    await snoozed?.snooze('1h')
    mark('snooze')
    await cancelled?.cancelled()
    mark('cancelled')
    await holdfast.kv.put('k', 1)
    mark('put')
    await holdfast.kv.compareAndSet('new', null, 2)
    mark('compareAndSet')
    await holdfast.kv.delete('k')
    mark('delete')
    await holdfast.requeue(dead?.job.id ?? '')
    mark('requeue')
    await holdfast.cancel(dead?.job.id ?? '')
    mark('cancel')
    await holdfast.pause('mail')
    mark('pause')
    await holdfast.resume('mail')
    mark('resume')
    await holdfast.queue('kept', { retain: { done: '9d' } }).claim()
    mark('define')
  },

  /** Every call that must not wait for the disk; each changes something. */
  async quick() {
    await mail.enqueueMany(numbers(3))
    await mail.enqueue('due', { delay: '10s' })
    await mail.enqueue('overdue', { startBefore: clock.now() + 10_000, priority: 9 })
    mark('start')
    const [lease] = await mail.claim({ max: 3, lease: '30s' })
    mark('claim')
    await lease?.renew('20s')
    mark('renew')
    clock.advance(10_000)
    const { promoted, overdue } = await holdfast.sweep()
    mark(`sweep promoted ${promoted}, cancelled ${overdue}`)
    clock.advance(20_000)
    const { rescued } = await holdfast.sweep()
    mark(`sweep rescued ${rescued}`)
    clock.advance(2 * 86_400_000)
    const { pruned } = await holdfast.sweep()
    mark(`sweep pruned ${pruned}`)
    await holdfast.job(lease?.job.id ?? '')
    await holdfast.queues()
    mark('read')
  },

  /** A claim that is the first write after the file was opened. */
  async first() {
    mark('start')
    await mail.claim()
    mark('claim')
  },

  /** Occasional claims between so many enqueues that the log is checkpointed and restarted. */
  async restarted() {
    mark('start')
    for (let n = 1; n <= 6; n++) {
      await mail.enqueueMany(numbers(1_000))
      await holdfast.queues() // the store's work after the answer has ended
      mark(`enqueue ${n}`)
      await mail.claim()
      mark(`claim ${n}`)
    }
  },
}

await programs[what]?.()
mark('end')
await holdfast.close()
