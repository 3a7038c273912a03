// Watches everything and writes down what it is told, one line a change. Started again it goes on behind the last line.
import { existsSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../../src/errors.ts'
import { machineMs } from '../../sqlite/process.ts'
import { logAt } from '../log.ts'
import type { WatchLine } from '../told.ts'
import { duty, openWorld, say, serve } from './member.ts'

const path = `${duty.log}.told`
/** How long nothing must be told until all is. */
const quietMs = 1_500

const world = await openWorld()
let cursor = lastCursor()
const log = logAt(path)
/** It does nothing but go on: nobody waits for the disk. */
const write = (line: WatchLine) => {
  log.write(`${JSON.stringify(line)}\n`)
  void log.sync()
}
let toldAt = machineMs()
let isOver = false

async function watch(): Promise<void> {
  const changes = world.holdfast.watch(cursor === null ? {} : { after: cursor })
  try {
    await changes.begun
    if (cursor === null) write({ since: machineMs() })
    for await (const change of changes) {
      write({ id: change.id, state: change.state, cursor: change.cursor })
      cursor = change.cursor
      toldAt = machineMs()
    }
  } catch (error) {
    if (isHoldfastError(error, 'INVALID_OPTION')) {
      write({ refused: machineMs() })
      cursor = null
    } else if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || !duty.mayBeDown) throw error
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

say({ said: 'open' })
await serve(world, {
  over: goOn(),
  stop: async () => {
    toldAt = machineMs() // it may look but once a second
    while (machineMs() - toldAt < quietMs) await sleep(100)
    isOver = true
    await log.sync()
  },
})
