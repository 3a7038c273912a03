// On a terminal, one line that says what is being measured; without a terminal, nothing.

const stream = process.stderr

export function showProgress(text: string): void {
  if (stream.isTTY) stream.write(`\r\x1b[2K  ${text.slice(0, Math.max(20, (stream.columns ?? 80) - 4))} …`)
}

export function clearProgress(): void {
  if (stream.isTTY) stream.write('\r\x1b[2K')
}
