// The kill switch for every background loop: HOLDFAST_DISABLE=sweep,schedule,reap,presence,work.

import { HoldfastError } from '../errors.ts'

export type BackgroundLoop = 'sweep' | 'schedule' | 'reap' | 'presence' | 'work'

const loops: readonly BackgroundLoop[] = ['sweep', 'schedule', 'reap', 'presence', 'work']

export function isDisabled(loop: BackgroundLoop): boolean {
  return named().includes(loop)
}

/** Throws INVALID_OPTION for an unknown name: otherwise the operator would believe that a loop is off while it runs. */
export function checkDisabled(): void {
  const unknown = named().filter((name) => name !== '' && !(loops as readonly string[]).includes(name))
  if (unknown.length === 0) return
  const message = `HOLDFAST_DISABLE takes ${loops.join(', ')}, separated by commas; got ${unknown.join(', ')}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'HOLDFAST_DISABLE', value: unknown.join(',') })
}

function named(): string[] {
  return (process.env['HOLDFAST_DISABLE'] ?? '').split(',').map((name) => name.trim())
}
