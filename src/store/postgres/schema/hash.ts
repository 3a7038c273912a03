export function numberOf(gate: string): string {
  return `hashtextextended(${gate}, 0)`
}
