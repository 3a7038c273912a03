import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { runInNewContext } from 'node:vm'
import { isHoldfastError } from '../../src/index.ts'
import { abortOf, heard, minute, readJob } from './expect.ts'
import type { InWorld } from './world.ts'

/** A test runner, or `vm`, runs code in a realm of its own: its errors are no instances of the `Error` of this realm. */
export function otherRealmTests(inWorld: InWorld): void {
  describe('errors of another realm', () => {
    test(
      'an error that a handler throws is kept with its name, its message and its causes',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { attempts: 1 })
        const { id } = await mail.enqueue(1)
        const dead = heard(holdfast, 'job.dead')
        await using _ = holdfast.work(mail, () => {
          throw foreign('new TypeError("outer", { cause: new RangeError("inner") })')
        })
        await dead
        const { error } = await readJob(holdfast, id)
        assert.deepEqual([error?.name, error?.message], ['TypeError', 'outer'])
        assert.deepEqual(error?.causes, [{ name: 'RangeError', message: 'inner' }])
      }),
    )

    test(
      'a permanent error makes the job dead at once',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { attempts: 9 })
        const { id } = await mail.enqueue(1)
        const ended = Promise.race([heard(holdfast, 'job.dead'), heard(holdfast, 'job.retrying')])
        await using _ = holdfast.work(mail, () => {
          throw foreign('Object.assign(new Error("never"), { [Symbol.for("holdfast.Permanent")]: true })')
        })
        await ended
        const { state, attempts, error } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, error?.message], ['dead', 1, 'never'])
      }),
    )

    test(
      'an error with a retry delay is retried after that delay',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue('mail', { attempts: 2 })
        const { id } = await mail.enqueue(1)
        const retrying = heard(holdfast, 'job.retrying')
        await using _ = holdfast.work(mail, () => {
          const delay = `{ delayMs: ${7 * minute}, [Symbol.for("holdfast.RetryLater")]: true }`
          throw foreign(`Object.assign(new Error("busy"), ${delay})`)
        })
        await retrying
        assert.equal((await readJob(holdfast, id)).runAt.getTime() - clock.now(), 7 * minute)
      }),
    )

    test(
      'a cancelled handler that ends with an AbortError is cancelled without an error',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1)
        const started = heard(holdfast, 'job.started')
        const cancelled = heard(holdfast, 'job.cancelled')
        await using _ = holdfast.work(mail, async ({ signal }) => {
          await abortOf(signal)
          throw foreign('Object.assign(new Error("aborted"), { name: "AbortError" })')
        })
        await started
        await holdfast.cancel(id)
        await cancelled
        const { state, history } = await readJob(holdfast, id)
        assert.deepEqual([state, history.at(-1)?.error ?? null], ['cancelled', null])
      }),
    )

    test('an error of another copy of this package is recognised by its mark', () => {
      const error = foreign(
        'Object.assign(new Error("x"), { code: "CLOSED", [Symbol.for("holdfast.HoldfastError")]: true })',
      )
      assert.ok(isHoldfastError(error, 'CLOSED'))
      const { proxy, revoke } = Proxy.revocable({}, {})
      revoke()
      assert.equal(isHoldfastError(proxy), false)
    })
  })
}

function foreign(code: string): unknown {
  return runInNewContext(`(${code})`)
}
