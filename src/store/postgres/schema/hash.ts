export function hashOf(keyRef: string): string {
  return `hashtextextended(${keyRef}, 0)`
}
