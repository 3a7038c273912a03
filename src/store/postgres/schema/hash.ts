/** SQL for the hash that the jobs with a label are found by. A name contains no equals sign. */
export function labelHash(name: string, value: string): string {
  return hashOf(`${name} || '=' || ${value}`)
}

/** SQL for the hash that a limit key is found by, in indexes and in conditions. */
export function hashOf(keyRef: string): string {
  return `hashtextextended(${keyRef}, 0)`
}
