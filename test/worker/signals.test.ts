import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import { Program } from '../sqlite/process.ts'
import type { Said } from './programs/serves.ts'
import { sqliteSharedStore } from './shared-store.ts'
import { WorkerProcess } from './worker-process.ts'

test('the function that closeOnSignals returns removes its listeners', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  const listeners = () => ['SIGTERM', 'SIGINT', 'SIGHUP'].map((signal) => process.listenerCount(signal))
  const before = listeners()
  const ignore = holdfast.closeOnSignals()
  assert.deepEqual(
    listeners(),
    before.map((count, at) => count + (at < 2 ? 1 : 0)),
  )
  ignore()
  holdfast.closeOnSignals({ grace: '1s', signals: ['SIGHUP', 'SIGHUP'] })()
  assert.deepEqual(listeners(), before)
})

test('signals that a process cannot catch, and names of no signal, are refused', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  for (const signals of [['SIGKILL'], ['SIGSTOP'], ['SIGNAL'], [], 'SIGTERM', [15]] as never[])
    assert.throws(() => holdfast.closeOnSignals({ signals }), { code: 'INVALID_OPTION' })
  assert.throws(() => holdfast.closeOnSignals({ grace: 'soon' as never }), { code: 'INVALID_OPTION' })
})

test('a process ends by the first of two different signals', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  await using worker = await WorkerProcess.start(sharedStore.url, 'worker', { lease: '30s', concurrency: 1 })
  await holdfast.queue('tasks').enqueue({ do: 'hang' })
  await worker.until(() => worker.began.length === 1)
  worker.kill('SIGINT')
  await worker.happened('worker.stopping', 1)
  worker.kill('SIGTERM')
  assert.equal(await worker.ended, 'SIGINT')
})

for (const how of ['on', 'once', 'before'])
  test(`an HTTP server that listens to the signal by ${how} answers its requests, and its end is the end of the process`, async () => {
    await using sharedStore = await sqliteSharedStore()
    const holdfast = await sharedStore.open()
    await using program = Program.start('../../worker/programs/serves', sharedStore.url, how)
    const { id } = await holdfast.queue('tasks-0').enqueue(null)
    const { port } = await hearOf(program, 'port')
    const answer = answerOf(port)
    const heard = await hearAll(program, [{ began: 0 }, { heard: 'request' }])
    program.kill('SIGTERM')
    heard.push(await program.hear<Said>())
    assert.deepEqual(heard.at(-1), { heard: 'signal' })
    await assert.rejects(answerOf(port)) // it takes no new ones
    program.tell('end the jobs')
    heard.push(...(await hearAll(program, [{ ended: 0, isAborted: false }, { closed: 0 }])))
    program.tell('answer the requests')
    assert.equal(await answer, 'answered')
    assert.equal(await program.ended, 0)
    const rest = await restOf(program)
    assert.deepEqual([...heard, ...rest].filter((said) => 'heard' in said && said.heard === 'signal').length, 1)
    assert.equal((await holdfast.job(id))?.state, 'done')
  })

test('of two clients the first to be closed does not hurry the other, and the process ends by the signal', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  await using program = Program.start('../../worker/programs/serves', sharedStore.url, 'none', '2')
  const { id } = await holdfast.queue('tasks-1').enqueue(null)
  await hearAll(program, [{ began: 1 }, { port: 0 }])
  program.kill('SIGTERM')
  await hearAll(program, [{ closed: 0 }])
  program.tell('end the jobs')
  program.tell('end the others')
  await hearAll(program, [{ ended: 1, isAborted: false }])
  assert.equal(await program.ended, 'SIGTERM')
  const { state, attempts } = (await holdfast.job(id)) ?? {}
  assert.deepEqual([state, attempts], ['done', 1])
})

/** Over a connection of its own, which is not kept. */
async function answerOf(port: number): Promise<string> {
  const asked = request({ port, host: '127.0.0.1', agent: false }).end()
  const [response] = (await once(asked, 'response')) as [IncomingMessage]
  return text(response)
}

/** Hears until all of these were said, in any order. */
async function hearAll(program: Program, wanted: readonly Said[]): Promise<Said[]> {
  const heard: Said[] = []
  while (!wanted.every((each) => heard.some((said) => isDeepStrictEqual(said, each))))
    heard.push(await program.hear<Said>())
  return heard
}

async function hearOf(program: Program, name: 'port'): Promise<{ readonly port: number }> {
  for (;;) {
    const said = await program.hear<Said>()
    if (name in said) return said as { readonly port: number }
  }
}

/** What it said before it ended. */
async function restOf(program: Program): Promise<Said[]> {
  const rest: Said[] = []
  try {
    for (;;) rest.push(await program.hear<Said>())
  } catch {
    return rest
  }
}
