// The clock of a machine that somebody sets: every process and thread that loads this first takes its wall time from the
// machine's and an offset in a file, all of them from one moment to the next. Time that only passes is left alone.
//   node --import ./machine-clock.ts program.ts    with HOLDFAST_TORTURE_CLOCK=<file>

import { openSync, readSync, writeFileSync } from 'node:fs'

export function setClock(path: string, offsetMs: number): void {
  writeFileSync(path, Buffer.from(new Float64Array([offsetMs]).buffer))
}

const path = process.env['HOLDFAST_TORTURE_CLOCK']
if (path !== undefined) follow(path)

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
