// The package as npm publishes it, and fresh projects that install it.
import { cp, mkdir, readdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { manifest, root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { runOk } from '../support/shell.ts'

export interface Tarball extends AsyncDisposable {
  /** A directory that goes with it. No directory above it has packages. */
  readonly path: string
  /** Where a new project is that has installed it. */
  freshProject(name: string): Promise<string>
}

/** Packs a copy: the checkout's own dist may be in use, by a developer or by another test. */
export async function pack(): Promise<Tarball> {
  const scratch = await scratchDirectory()
  const copy = join(scratch.path, 'checkout')
  await mkdir(copy)
  const notCopied = ['.git', 'node_modules', 'dist', 'test']
  for (const name of await readdir(root)) {
    if (!notCopied.includes(name)) await cp(join(root, name), join(copy, name), { recursive: true })
  }
  await symlink(join(root, 'node_modules'), join(copy, 'node_modules'), 'junction')
  await runOk('npm', ['pack', '--pack-destination', scratch.path], { cwd: copy })
  const file = join(scratch.path, `holdfast-${manifest.version}.tgz`)
  return {
    path: scratch.path,
    [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose](),
    async freshProject(name) {
      const project = join(scratch.path, name)
      await mkdir(project)
      await writeFile(join(project, 'package.json'), JSON.stringify({ name, private: true, type: 'module' }))
      await runOk('npm', ['install', '--prefer-offline', '--no-audit', '--no-fund', file], { cwd: project })
      return project
    },
  }
}
