// The watcher: writes every change to a file, one line each. After a restart it continues from the cursor of the last line.
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../../src/errors.ts'
import { machineMs } from '../../sqlite/process.ts'
import { logAt } from '../log.ts'
import type { WatchLine } from '../watch-log.ts'
import { openWorld, options, report, serve } from './member.ts'

const path = `${options.log}.jsonl`
/** After so long without a change, the watcher has received all of them. */
const quietMs = 1_500

const world = await openWorld()
let cursor = lastCursor()
const log = logAt(path)
/** Does not wait for the disk: the watcher acts on no change. */
const write = (line: WatchLine) => {
  log.write(`${JSON.stringify(line)}\n`)
  void log.sync()
}
let lastChangeAt = machineMs()
let isOver = false

async function watch(): Promise<void> {
  const changes = world.holdfast.watch(cursor === null ? {} : { after: cursor })
  try {
    await changes.begun
    if (cursor === null) write({ since: machineMs() })
    for await (const change of changes) {
      write({ id: change.id, state: change.state, cursor: change.cursor })
      cursor = change.cursor
      lastChangeAt = machineMs()
    }
  } catch (error) {
    if (isHoldfastError(error, 'INVALID_OPTION')) {
      write({ refused: machineMs() })
      cursor = null
    } else if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || !options.mayBeDown) throw error
    cursor = cursor === null ? null : (changes.cursor ?? cursor)
    await sleep(50)
  }
}

function lastCursor(): string | null {
  if (!existsSync(path)) return null
  const text = readFileSync(path, 'utf8')
  const lines = text
    .slice(0, text.lastIndexOf('\n') + 1)
    .split('\n')
    .slice(0, -1)
  const last = lines.map((line) => JSON.parse(line) as WatchLine).findLast((line) => !('since' in line))
  return last && 'cursor' in last ? last.cursor : null
}

async function goOn(): Promise<void> {
  while (!isOver) await watch()
}

report({ kind: 'open' })
await serve(world, {
  over: goOn(),
  stop: async () => {
    lastChangeAt = machineMs() // it may poll only once a second
    while (machineMs() - lastChangeAt < quietMs) await sleep(100)
    isOver = true
    await log.sync()
  },
})
