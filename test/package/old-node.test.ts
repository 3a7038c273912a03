// On a Node that is too old, the package and the command print one sentence. Neither fails with a syntax error.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { cp, symlink, writeFile } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import test from 'node:test'
import { root, tsc } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { run, runOk } from '../support/shell.ts'

const old = oldNodeOnPath()
const skip = old ? false : 'no Node older than 24 on the PATH'
const sentence = `Holdfast needs Node.js 24 or newer; this is ${old?.version}. Install a current Node and try again.`

test('importing the package on an old Node throws one sentence', { skip }, async () => {
  await using built = await build()
  await writeFile(join(built.path, 'program.js'), `import { open } from './dist/index.js'\nopen('sqlite::memory:')\n`)
  const { code, stderr } = await run(old?.path ?? '', ['program.js'], { cwd: built.path })
  assert.match(stderr, new RegExp(`^Error: ${RegExp.escape(sentence)}$`, 'm'))
  assert.doesNotMatch(stderr, /SyntaxError|ERR_/)
  assert.equal(code, 1)
})

test('the command on an old Node prints one sentence and exits 1', { skip }, async () => {
  await using built = await build()
  const { code, stdout, stderr } = await run(old?.path ?? '', ['bin/holdfast.js', '--help'], { cwd: built.path })
  assert.deepEqual({ code, stdout, stderr }, { code: 1, stdout: '', stderr: `${sentence}\n` })
})

async function build() {
  const built = await scratchDirectory()
  await runOk(process.execPath, [tsc, '-p', 'tsconfig.build.json', '--outDir', join(built.path, 'dist')], { cwd: root })
  await cp(join(root, 'bin'), join(built.path, 'bin'), { recursive: true })
  await cp(join(root, 'package.json'), join(built.path, 'package.json'))
  await symlink(join(root, 'node_modules'), join(built.path, 'node_modules'))
  return built
}

function oldNodeOnPath() {
  for (const directory of (process.env['PATH'] ?? '').split(delimiter)) {
    const path = join(directory, 'node')
    const version = versionOf(path)
    if (version && Number.parseInt(version, 10) < 24) return { path, version }
  }
  return undefined
}

function versionOf(path: string): string | undefined {
  try {
    return execFileSync(path, ['-p', 'process.versions.node'], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  } catch {
    return undefined
  }
}
