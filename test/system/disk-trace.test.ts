// The trace that judges durability is itself tested: it must show a sync if there is one, and none if there is none.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test from 'node:test'
import { diskEvents, traceDisk } from '../support/disk-trace.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { needs } from '../support/system.ts'

test('a traced program shows its syncs between its marks', { skip: needs('strace') }, async () => {
  await using scratch = await scratchDirectory()
  const program = join(scratch.path, 'program.mjs')
  await writeFile(
    program,
    `import { fdatasyncSync, fsyncSync, openSync, writeSync } from 'node:fs'
     const file = openSync('data', 'w')
     writeSync(file, 'one'), writeSync(1, 'mark: written\\n')
     writeSync(file, 'two'), fsyncSync(file), writeSync(1, 'mark: synced\\n')
     writeSync(file, 'three'), fdatasyncSync(file), writeSync(1, 'mark: synced again\\n')`,
  )
  assert.deepEqual(await traceDisk(program), ['mark: written', 'sync', 'mark: synced', 'sync', 'mark: synced again'])
})

test('a sync that another thread interrupts counts once, at its return', () => {
  const log = `
17 fdatasync(21 <unfinished ...>
16 write(1, "mark: too early\\n", 16) = 16
17 <... fdatasync resumed>)          = 0
16 write(1, "mark: acknowledged\\n", 19) = 19
16 write(18, "mark: not to stdout", 19) = 19`
  assert.deepEqual(diskEvents(log), ['mark: too early', 'sync', 'mark: acknowledged'])
})
