#!/usr/bin/env node
// Plain old syntax and no static imports: a Node of any age must get as far as the sentence below.
var version = process.versions.node

if (parseInt(version, 10) < 24) {
  console.error('Holdfast needs Node.js 24 or newer; this is ' + version + '. Install a current Node and try again.')
  process.exit(1)
}

// A checkout runs its source, so that a build left behind is never what runs; the package carries only dist.
import('node:fs').then((fs) => {
  var source = new URL('../src/cli/main.ts', import.meta.url)
  return import(fs.existsSync(source) ? source.href : new URL('../dist/cli/main.js', import.meta.url).href)
})
