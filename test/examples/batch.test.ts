// The batch that `npm start` shows: run to its end, and killed half-way.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import test from 'node:test'
import { open } from '../../src/open.ts'
import { root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'

const items = 150
/** Every 25th article fails at first, and every ninth is a duplicate. */
const [failing, duplicates] = [6, 16]

test('the bar goes from nothing to 100 %, failed items are retried, and the outcomes are printed', async () => {
  await using world = await setup()
  const child = world.start()
  const output = await text(child.stdout as NodeJS.ReadableStream)
  assert.match(output, new RegExp(`A batch in batch\\.db: ${items} articles, 12 at a time\\.`))
  assert.match(output, new RegExp(`░+ +0 % {2}0/${items} {2}\\d+ running`))
  assert.match(output, new RegExp(`█+ 100 % {2}${items}/${items} {2}0 running.* ${failing} dead {2}\\d+/s`))
  assert.match(output, new RegExp(`${failing} failed; once more`))
  assert.match(output, new RegExp(`outcomes {2}saved ${items - duplicates}, duplicate ${duplicates}\n`))
  assert.match(output, /costs {5}tokens [\d,]+\n {2}dead {6}0\n {2}rounds {4}2, in /)
})

test('after a kill half-way, the next start goes on with the same batch, and every article is stored once', async () => {
  await using world = await setup()
  const first = world.start()
  await using holdfast = await open(`sqlite:${world.file}`, { logger: false })
  const doneSoFar = async () => (await holdfast.batches()).batches[0]?.done ?? 0
  while ((await doneSoFar()) < 20) assert.equal(first.exitCode, null, 'the program still runs')
  first.kill('SIGKILL')
  await once(first, 'close')
  const output = await text(world.start().stdout as NodeJS.ReadableStream)
  assert.match(output, /articles, 12 at a time\. \d+ are done already\./)
  const { batches } = await holdfast.batches()
  assert.equal(batches.length, 1)
  assert.equal(batches[0]?.total, items)
  assert.equal(batches[0]?.state, 'done')
})

async function setup() {
  const scratch = await scratchDirectory()
  const started: ChildProcess[] = []
  const start = () => {
    const args = [join(root, 'examples/batch.ts'), 'batch.db', '--items', String(items)]
    const child = spawn(process.execPath, args, { cwd: scratch.path, stdio: ['ignore', 'pipe', 'inherit'] })
    started.push(child)
    return child
  }
  return {
    ...{ start, file: join(scratch.path, 'batch.db') },
    async [Symbol.asyncDispose]() {
      for (const child of started) child.kill('SIGKILL')
      await scratch[Symbol.asyncDispose]()
    },
  }
}
