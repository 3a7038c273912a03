import type { Holdfast } from '../../src/holdfast.ts'
import { internalsOf } from '../../src/holdfast.ts'

/** Writes an entry of Holdfast itself, as a damaged store or another version may have it. Applications cannot. */
export async function putReserved(holdfast: Holdfast, key: string, value: unknown): Promise<void> {
  const { store } = internalsOf(holdfast)
  await store.kvWrite([{ as: 'put', key, value: JSON.stringify(value), ttlMs: null }])
}
