// Traces a program with strace and lists, in order, when it synced a file and when it printed a mark. A program prints a mark
// with `writeSync(1, 'mark: enqueued\n')`. So "synced before it was acknowledged" becomes a question about a list.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { scratchDirectory } from './scratch.ts'
import { runOk } from './shell.ts'

export type DiskEvent = 'sync' | `mark: ${string}`

export async function traceDisk(program: string, args: readonly string[] = []): Promise<DiskEvent[]> {
  await using scratch = await scratchDirectory()
  const log = join(scratch.path, 'trace')
  const watch = ['-f', '-qq', '-s', '200', '-e', 'trace=fsync,fdatasync,write', '-e', 'signal=none', '-o', log]
  await runOk('strace', [...watch, process.execPath, program, ...args], { cwd: scratch.path })
  return diskEvents(await readFile(log, 'utf8'))
}

// A call that another thread interrupts is logged in two parts. The sync counts at its return.
export function diskEvents(log: string): DiskEvent[] {
  const events: DiskEvent[] = []
  for (const line of log.split('\n')) {
    const mark = /\bwrite\(1, "(mark: [^"\\]*)/.exec(line)
    if (mark) events.push(mark[1] as DiskEvent)
    const sync = /\bf(?:data)?sync(?:\(\d+\)| resumed>\)) += (-?\d+)/.exec(line)
    if (sync) {
      assert.equal(sync[1], '0', `a sync failed: ${line}`)
      events.push('sync')
    }
  }
  return events
}
