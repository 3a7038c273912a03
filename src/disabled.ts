// The kill switch for every background loop: HOLDFAST_DISABLE=sweep,schedule,reap,presence,work.

export type BackgroundLoop = 'sweep' | 'schedule' | 'reap' | 'presence' | 'work'

export function isDisabled(loop: BackgroundLoop): boolean {
  const named = process.env['HOLDFAST_DISABLE'] ?? ''
  return named
    .split(',')
    .map((name) => name.trim())
    .includes(loop)
}
