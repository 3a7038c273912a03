// The kill switch for every background loop: HOLDFAST_DISABLE=sweep,schedule,reap,work.

export type BackgroundLoop = 'sweep' | 'schedule' | 'reap' | 'work'

export function isDisabled(loop: BackgroundLoop): boolean {
  const named = process.env['HOLDFAST_DISABLE'] ?? ''
  return named
    .split(',')
    .map((name) => name.trim())
    .includes(loop)
}
