// This repository, for the tests about it.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

export const root = join(import.meta.dirname, '../..')
export const tsc = join(root, 'node_modules/typescript/bin/tsc')

interface Manifest {
  readonly version: string
  readonly scripts: Readonly<Record<string, string>>
  readonly exports: Readonly<Record<string, string | { readonly types: string; readonly default: string }>>
}

export const manifest: Manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
