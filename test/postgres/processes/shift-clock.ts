const shiftMs = Number(process.argv[3])
const RealDate = Date

globalThis.Date = class extends RealDate {
  constructor(...args: []) {
    if (args.length === 0) super(RealDate.now() + shiftMs)
    else super(...args)
  }

  static override now(): number {
    return RealDate.now() + shiftMs
  }
} as DateConstructor
