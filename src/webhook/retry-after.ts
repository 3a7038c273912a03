/** The delay in a `Retry-After` header, seconds or a date, in milliseconds; null if it is absent or cannot be parsed. */
export function retryAfterMs(header: string | undefined, now: number): number | null {
  if (header === undefined) return null
  const text = header.trim()
  if (/^\d{1,9}$/.test(text)) return Number(text) * 1_000
  const at = /^[A-Za-z]{3}/.test(text) ? Date.parse(text) : Number.NaN
  return Number.isNaN(at) ? null : Math.max(0, at - now)
}
