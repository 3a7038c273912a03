// Imported first by every entry point. An old Node must reach this check before it reaches a feature that it lacks. So the
// package is compiled to ES2022 syntax, and a module that an old Node cannot link (node:sqlite) is imported dynamically.
const version = process.versions.node

if (Number.parseInt(version, 10) < 24) {
  throw new Error(`Holdfast needs Node.js 24 or newer; this is ${version}. Install a current Node and try again.`)
}
