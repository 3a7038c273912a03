// Imported first by every entry point. An old Node must meet this sentence before it meets a feature it lacks, so the
// package is compiled to ES2022 syntax, and whatever an old Node cannot even link (node:sqlite) is imported dynamically.
const version = process.versions.node

if (Number.parseInt(version, 10) < 24) {
  throw new Error(`Holdfast needs Node.js 24 or newer; this is ${version}. Install a current Node and try again.`)
}
