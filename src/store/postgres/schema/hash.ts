/** SQL for the hash that a limit key is found by, in indexes and in conditions. */
export function hashOf(keyRef: string): string {
  return `hashtextextended(${keyRef}, 0)`
}
