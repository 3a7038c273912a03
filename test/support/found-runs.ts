// In which run a judge found each fault. That run is made first, so that a judge is tested in seconds. If it no longer shows the
// fault, because runs are drawn in another way, all runs are searched. UPDATE_GOLDEN=1 searches and records anew.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { after, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'

export class FoundRuns {
  readonly #path: string
  readonly #runs: Record<string, readonly number[]>
  readonly #isRecording = process.env['UPDATE_GOLDEN'] === '1'
  #isChanged = false

  constructor(url: URL) {
    this.#path = fileURLToPath(url)
    this.#runs = existsSync(this.#path) ? JSON.parse(readFileSync(this.#path, 'utf8')) : {}
    after(() => this.#write())
  }

  /** The recorded runs; none if they are to be recorded anew. */
  of(name: string): readonly number[] {
    return this.#isRecording ? [] : (this.#runs[name] ?? [])
  }

  /** A search has found these runs. */
  record(t: TestContext, name: string, runs: readonly number[]): void {
    if (!this.#isRecording) t.diagnostic(`found in run ${runs.join(', ')}; record it with UPDATE_GOLDEN=1`)
    this.#runs[name] = runs
    this.#isChanged = true
  }

  #write(): void {
    if (!this.#isRecording || !this.#isChanged) return
    const sorted = Object.entries(this.#runs).sort(([a], [b]) => (a < b ? -1 : 1))
    const lines = sorted.map(([name, runs]) => `  ${JSON.stringify(name)}: [${runs.join(', ')}]`) // as the formatter writes it
    writeFileSync(this.#path, `{\n${lines.join(',\n')}\n}\n`)
  }
}
