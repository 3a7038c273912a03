// Columns of values as one parameter each, in PostgreSQL's binary array format: `unnest($1::uuid[], $2::text[])`. The
// driver would write arrays as text, quoting every element, for the server to take apart again.

const oids = { int2: 21, int4: 23, int8: 20, text: 25, uuid: 2950, xid8: 5069 } as const
const headerBytes = 20

function header(buffer: Buffer, type: keyof typeof oids, count: number, hasNull: boolean): void {
  buffer.writeInt32BE(1, 0) // one dimension
  buffer.writeInt32BE(hasNull ? 1 : 0, 4)
  buffer.writeInt32BE(oids[type], 8)
  buffer.writeInt32BE(count, 12)
  buffer.writeInt32BE(1, 16) // counted from 1
}

export function uuids(values: readonly string[]): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 20)
  header(buffer, 'uuid', values.length, false)
  let at = headerBytes
  for (const value of values) {
    at = buffer.writeInt32BE(16, at)
    at += buffer.write(value.length === 32 ? value : value.replaceAll('-', ''), at, 'hex')
  }
  return buffer
}

export function smallints(values: readonly number[]): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 6)
  header(buffer, 'int2', values.length, false)
  let at = headerBytes
  for (const value of values) at = buffer.writeInt16BE(value, buffer.writeInt32BE(2, at))
  return buffer
}

export function ints(values: readonly number[]): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 8)
  header(buffer, 'int4', values.length, false)
  let at = headerBytes
  for (const value of values) at = buffer.writeInt32BE(value, buffer.writeInt32BE(4, at))
  return buffer
}

/** Whole numbers up to 2^53, or null. */
export function bigints(values: readonly (number | null)[], type: 'int8' | 'xid8' = 'int8'): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 12)
  header(buffer, type, values.length, values.includes(null))
  let at = headerBytes
  for (const value of values) {
    at = buffer.writeInt32BE(value === null ? -1 : 8, at)
    if (value === null) continue
    at = buffer.writeInt32BE(Math.floor(value / 0x1_0000_0000), at)
    at = buffer.writeUInt32BE(value - Math.floor(value / 0x1_0000_0000) * 0x1_0000_0000, at)
  }
  return buffer.subarray(0, at)
}

/** Null where every value is: most columns of most calls. */
export function optionalBigints(values: readonly (number | null)[]): Buffer | null {
  return values.every((value) => value === null) ? null : bigints(values)
}

export function texts(values: readonly (string | null)[]): Buffer {
  let characters = 0
  for (const value of values) characters += value?.length ?? 0
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 4 + characters * 3)
  header(buffer, 'text', values.length, values.includes(null))
  let at = headerBytes
  for (const value of values) {
    if (value === null) {
      at = buffer.writeInt32BE(-1, at)
      continue
    }
    const written = buffer.write(value, at + 4)
    buffer.writeInt32BE(written, at)
    at += 4 + written
  }
  return buffer.subarray(0, at)
}

export function optionalTexts(values: readonly (string | null)[]): Buffer | null {
  return values.every((value) => value === null) ? null : texts(values)
}
