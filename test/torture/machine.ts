// A machine that somebody tampers with, for every process and thread that loads this first:
//   node --import ./machine.ts program.ts
//
// Its clock is set: with HOLDFAST_TORTURE_CLOCK=<file> wall time comes from the real one and an offset in that file, for all
// from one moment to the next. Time that only passes is left alone. With HOLDFAST_TORTURE_DEAF=1 nobody hears of files that
// change, and so of nothing that other processes commit to a SQLite file.

import { EventEmitter } from 'node:events'
import fs, { openSync, readSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'

export function setClock(path: string, offsetMs: number): void {
  writeFileSync(path, Buffer.from(new Float64Array([offsetMs]).buffer))
}

const path = process.env['HOLDFAST_TORTURE_CLOCK']
if (path !== undefined) follow(path)
if (process.env['HOLDFAST_TORTURE_DEAF'] === '1') unsubscribe()

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
