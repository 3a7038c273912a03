import { bounds } from '../job/bounds.ts'
import type { KvWrite } from '../job/record.ts'
import type { KvAnswer, KvPage, Store } from '../store/store.ts'

/** Makes one write, and waits for its answer. */
export async function writeEntry(store: Pick<Store, 'kvWrite'>, write: KvWrite): Promise<KvAnswer> {
  const [answer] = await store.kvWrite([write])
  return (await answer) as KvAnswer
}

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
