// The last step of the build: writes the program of each thread, as one text, into the module of the package that bundles take
// it from (see src/runtime/thread-program.ts). White space is left out and names are kept, so that a stack trace can be read.
import { writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { build } from 'esbuild'

const dist = process.argv[2] ?? join(import.meta.dirname, '../dist')
const programs = ['store/sqlite/thread/main.js', 'worker/threads/thread-main.js']

for (const program of programs) {
  const text = await textOf(join(dist, program))
  const module = join(dist, dirname(program), 'bundled.js')
  await writeFile(module, `// Written by the build.\nexport const bundled = ${JSON.stringify(text)}\n`)
}

/** With all that it imports but the modules of Node. It runs as a script and as a module, so it may not export or await. */
async function textOf(program: string): Promise<string> {
  const { outputFiles, metafile } = await build({
    entryPoints: [program],
    bundle: true,
    write: false,
    metafile: true,
    platform: 'node',
    format: 'cjs',
    target: 'node24',
    minifyWhitespace: true,
    minifySyntax: true,
    logLevel: 'warning',
  })
  const foreign = Object.values(metafile.outputs).flatMap(({ imports }) => imports.map(({ path }) => path))
  const missing = foreign.filter((path) => process.getBuiltinModule(path) === undefined)
  if (missing.length > 0)
    throw new Error(`${program} imports ${missing.join(', ')}, which a thread of a bundle has not.`)
  return outputFiles[0]?.text ?? ''
}
