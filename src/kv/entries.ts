import { bounds } from '../job/bounds.ts'
import type { KvPage, Store } from '../store/store.ts'

/** Every entry whose key starts with the prefix, by key. */
export async function entriesIn(store: Pick<Store, 'kvScan'>, prefix: string): Promise<KvPage['entries'][number][]> {
  const all: KvPage['entries'][number][] = []
  let after: string | null = null
  do {
    const page: KvPage = await store.kvScan({ prefix, limit: bounds.pageMax, after })
    all.push(...page.entries)
    after = page.next
  } while (after !== null)
  return all
}
