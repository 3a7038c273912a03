// Applies each line of its stdin to the batch with the key `k`, and prints the result.
//   acts.ts <store>
import { createInterface } from 'node:readline'
import { isHoldfastError } from '../../../src/errors.ts'
import type { Lease } from '../../../src/lease/lease.ts'
import { open } from '../../../src/open.ts'

export type Act =
  | { readonly do: 'submit'; readonly items: number; readonly dieAt?: number }
  | { readonly do: 'claim'; readonly max: number; readonly leaseMs?: number }
  | { readonly do: 'settle'; readonly as: 'done' | 'dead' }
  | { readonly do: 'pause' | 'resume' | 'cancel' | 'retryFailed' | 'delete' }
  | { readonly do: 'die' }

const [store = ''] = process.argv.slice(2)
const holdfast = await open(store, { logger: false })
const die = () => process.kill(process.pid, 'SIGKILL')
let leases: Lease[] = []

console.log(JSON.stringify('ready'))
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await act(JSON.parse(line) as Act)))
}

async function act(wanted: Act): Promise<unknown> {
  switch (wanted.do) {
    case 'submit': {
      const options = {
        name: 'b',
        key: 'k',
        concurrency: Number.POSITIVE_INFINITY,
        onComplete: { queue: 'completions' },
      }
      const batch = await holdfast.batch(options, itemsUpTo(wanted.items, wanted.dieAt))
      return (await batch.progress()).total
    }
    case 'claim':
      leases = await holdfast.claim(['mail'], { max: wanted.max, lease: wanted.leaseMs ?? 60_000 })
      return leases.length
    case 'settle': {
      const how = (lease: Lease) => (wanted.as === 'done' ? lease.done() : lease.dead(new Error('no')))
      return (await Promise.allSettled(leases.map(how))).map(({ status }) => status)
    }
    case 'die':
      return die()
    default:
      return control(wanted.do)
  }
}

async function control(as: 'pause' | 'resume' | 'cancel' | 'retryFailed' | 'delete'): Promise<unknown> {
  try {
    const batch = await holdfast.getBatch({ key: 'k' })
    return (await batch?.[as]())?.state ?? null
  } catch (error) {
    return isHoldfastError(error) ? error.code : String(error)
  }
}

async function* itemsUpTo(count: number, dieAt?: number) {
  for (let payload = 0; payload < count; payload++) {
    if (payload === dieAt) die()
    yield { queue: 'mail', payload }
  }
}
