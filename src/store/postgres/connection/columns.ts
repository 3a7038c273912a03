// Columns of values as one parameter each: `unnest($1::uuid[], $2::text[])`. Numbers and ids are written as PostgreSQL's array
// literals. Texts are sent in its binary array format: the driver would write them as a literal and quote every one, and the
// server would parse it again. To insert 500 jobs took 0.9 µs a job in the client; 2.0 with the driver's arrays, 1.8 with JSON.

/** For numbers, ids and the like: values that need no quoting. */
export function list(values: readonly (string | number)[]): string {
  return `{${values.join(',')}}`
}

/** One value for all, if all are the same. */
export function sharedList(values: readonly number[]): string {
  return list(values.every((value) => value === values[0]) ? values.slice(0, 1) : values)
}

/** Null if every value is null, as in most columns of most calls. */
export function optionalList(values: readonly (number | null)[]): string | null {
  return values.every((value) => value === null) ? null : list(values.map((value) => value ?? 'NULL'))
}

const headerBytes = 20
const textOid = 25

export function texts(values: readonly (string | null)[]): Buffer {
  let characters = 0
  for (const value of values) characters += value?.length ?? 0
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 4 + characters * 3)
  buffer.writeInt32BE(1, 0) // one dimension
  buffer.writeInt32BE(values.includes(null) ? 1 : 0, 4)
  buffer.writeInt32BE(textOid, 8)
  buffer.writeInt32BE(values.length, 12)
  let at = buffer.writeInt32BE(1, 16) // counted from 1
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

/** A column of an answer, as the server wrote it. */
export function parseList(literal: string): string[] {
  return literal === '{}' ? [] : literal.slice(1, -1).split(',')
}
