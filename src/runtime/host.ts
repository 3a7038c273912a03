// The program that runs this code. Deno and Bun say that they are Node, and have most of it; what they lack is refused where it
// is asked for. docs/guides/runtimes.md lists it.

export type Host = 'Node.js' | 'Deno' | 'Bun'

export function hostOf(versions: Readonly<Record<string, string | undefined>>): Host {
  if (versions['deno'] !== undefined) return 'Deno'
  return versions['bun'] === undefined ? 'Node.js' : 'Bun'
}

export const host = hostOf(process.versions)
