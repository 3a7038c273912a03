// A temporary directory, removed at the end of its scope: `await using scratch = await scratchDirectory()`.
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface Scratch extends AsyncDisposable {
  readonly path: string
}

export async function scratchDirectory(under: string = tmpdir()): Promise<Scratch> {
  await mkdir(under, { recursive: true })
  const path = await mkdtemp(join(under, 'holdfast-'))
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}
