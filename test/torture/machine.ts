// A machine with faults, for every process and thread that loads this module first:
//   node --import ./machine.ts program.ts
//
// - HOLDFAST_TORTURE_CLOCK=<file>: wall time is the real time plus an offset in that file, for all processes from one moment to
//   the next. Monotonic time is not changed.
// - HOLDFAST_TORTURE_NO_WATCH=1: `fs.watch` reports nothing. So a process is not notified of commits of other processes to a
//   SQLite file.

import { EventEmitter } from 'node:events'
import fs, { openSync, readSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'

export function setClock(path: string, offsetMs: number): void {
  writeFileSync(path, Buffer.from(new Float64Array([offsetMs]).buffer))
}

const path = process.env['HOLDFAST_TORTURE_CLOCK']
if (path !== undefined) follow(path)
if (process.env['HOLDFAST_TORTURE_NO_WATCH'] === '1') unsubscribe()

function follow(path: string): void {
  const file = openSync(path, 'r')
  const offset = new Float64Array(1)
  const RealDate = Date
  const now = () => {
    readSync(file, offset, 0, 8, 0)
    return RealDate.now() + Math.round(offset[0] as number)
  }
  globalThis.Date = class extends RealDate {
    constructor(...args: []) {
      if (args.length === 0) super(now())
      else super(...args)
    }

    static override now(): number {
      return now()
    }
  } as DateConstructor
}

function unsubscribe(): void {
  const silent = () => Object.assign(new EventEmitter(), { close() {}, ref() {}, unref() {} })
  Object.assign(fs, { watch: silent })
  syncBuiltinESMExports()
}
