import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { runInNewContext } from 'node:vm'
import { defineQueue } from '../../src/index.ts'
import { heard, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

type Validate = (value: unknown) => never

const late: Readonly<Record<string, Validate>> = {
  'a promise of another realm': runInNewContext(
    '(async (value) => (value && value.ok ? { value } : { issues: [{ message: "not ok" }] }))',
  ),
  'a thenable': ((value: { ok?: boolean } | null) => ({
    // biome-ignore lint/suspicious/noThenProperty: a thenable is what is tested
    then: (resolve: (answer: unknown) => void) => resolve(value?.ok ? { value } : { issues: [{ message: 'not ok' }] }),
  })) as Validate,
}

const noAnswers: Readonly<Record<string, unknown>> = {
  undefined,
  null: null,
  'a text': 'fine',
  true: true,
  'an empty object': {},
  'issues that are no list': { issues: 'all wrong', value: 1 },
  'a promise of a text': Promise.resolve('fine'),
}

/** What a schema may answer, whatever its types say. */
export function schemaAnswerTests(inWorld: InWorld): void {
  describe('the answer of a schema', () => {
    for (const [what, validate] of Object.entries(late)) {
      test(
        `${what} is awaited: an enqueue is refused, a payload reaches its handler, and a result is validated`,
        inWorld(async ({ holdfast }) => {
          const schema = schemaOf(validate)
          const mail = defineQueue('mail', { payload: schema, result: schema, attempts: 1 })
          const error = await rejects(holdfast.queue(mail).enqueue({ ok: false } as never), 'INVALID_PAYLOAD')
          assert.match(error.message, /: not ok\.$/)
          const fits = await holdfast.queue(mail).enqueue({ ok: true } as never)
          const bad = await holdfast.queue('mail').enqueue({ ok: false })
          const dead = heard(holdfast, 'job.dead', 2)
          const got: unknown[] = []
          await using _ = holdfast.work(mail, ({ payload }) => {
            got.push(payload)
            return { ok: false } as never
          })
          await dead
          assert.deepEqual(JSON.parse(JSON.stringify(got)), [{ ok: true }])
          for (const { id } of [fits, bad])
            assert.match((await readJob(holdfast, id)).error?.message ?? '', /: not ok\.$/)
        }),
      )
    }

    for (const [what, answer] of Object.entries(noAnswers)) {
      test(
        `${what} is no answer: an enqueue is refused, and a run is tried again without calling its handler`,
        inWorld(async ({ holdfast }) => {
          const mail = defineQueue('mail', { payload: schemaOf(() => answer as never), attempts: 2 })
          const error = await rejects(holdfast.queue(mail).enqueue(1 as never), 'INVALID_OPTION')
          assert.match(error.message, /^The payload schema of queue mail must answer \{ value \} or \{ issues \}; got /)
          const { id } = await holdfast.queue('mail').enqueue(1)
          const retrying = heard(holdfast, 'job.retrying')
          let calls = 0
          await using _ = holdfast.work(mail, () => {
            calls += 1
          })
          await retrying
          const { history } = await readJob(holdfast, id)
          assert.deepEqual([calls, history[0]?.error?.message], [0, error.message])
        }),
      )
    }

    const unclear: Readonly<Record<string, [issues: unknown[], says: RegExp]>> = {
      'an empty list of issues': [[], /does not fit the schema of queue mail, which names no issue\.$/],
      'an issue that is null': [[null], /queue mail: an issue without a message\.$/],
      'an issue whose message is no text': [[{ message: Symbol('x') }], /queue mail: an issue without a message\.$/],
      'a path with parts of every kind': [
        [{ message: 'bad', path: [null, Symbol('s'), { key: 'k' }, 3, {}] }],
        /queue mail: null\.Symbol\(s\)\.k\.3\.undefined: bad\.$/,
      ],
      'a path that is no list': [[{ message: 'bad', path: 'abc' }], /queue mail: bad\.$/],
    }
    for (const [what, [issues, says]] of Object.entries(unclear)) {
      test(
        `${what} is a refusal in a readable sentence`,
        inWorld(async ({ holdfast }) => {
          const mail = defineQueue('mail', { payload: schemaOf(() => ({ issues }) as never) })
          const error = await rejects(holdfast.queue(mail).enqueue(1 as never), 'INVALID_PAYLOAD')
          assert.match(error.message, says)
        }),
      )
    }
  })
}

function schemaOf(validate: Validate) {
  return { '~standard': { version: 1, vendor: 'test', validate } } as const
}
