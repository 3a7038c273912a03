// The numbers of batches and the ids that go with them, remembered: neither ever changes. Of those that came first most have
// ended by now, so they are forgotten first.

import type { Database } from './database.ts'

const namesMax = 10_000

export class BatchNames {
  readonly #db: Database
  readonly #ids = new Map<number, string>()
  readonly #nos = new Map<string, number>()

  constructor(db: Database) {
    this.#db = db
  }

  async idOf(no: number): Promise<string | null> {
    const known = this.#ids.get(no)
    if (known !== undefined) return known
    const [row] = await this.#db.query('select id from holdfast.batch where no = $1', [no])
    if (row?.[0] == null) return null // deleted, while its last items end
    this.remember(no, row[0])
    return row[0]
  }

  knownNo(id: string): number | undefined {
    return this.#nos.get(id)
  }

  remember(no: number, id: string): void {
    this.#ids.set(no, id)
    this.#nos.set(id, no)
    const [oldest] = this.#ids.size > namesMax ? this.#ids.keys() : []
    if (oldest !== undefined) this.forget(oldest)
  }

  forget(no: number): void {
    const id = this.#ids.get(no)
    if (id !== undefined) this.#nos.delete(id)
    this.#ids.delete(no)
  }
}
