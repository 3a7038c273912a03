// The kill switch for every background loop: HOLDFAST_DISABLE=sweep,schedule,work.

export type BackgroundLoop = 'sweep' | 'schedule' | 'work'

export function isDisabled(loop: BackgroundLoop): boolean {
  const named = process.env['HOLDFAST_DISABLE'] ?? ''
  return named
    .split(',')
    .map((name) => name.trim())
    .includes(loop)
}
