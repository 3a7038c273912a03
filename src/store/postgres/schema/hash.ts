export function numberOf(keyRef: string): string {
  return `hashtextextended(${keyRef}, 0)`
}
