// The way out. A name is resolved once, what it stands for is checked, and the connection goes to the very address that was
// checked: a name that stands for something else a moment later (DNS rebinding) finds nobody who asks. An address that is
// written in the URL is never looked up by Node, and is checked before.

import { type LookupAddress, type LookupOptions, lookup } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import { Permanent } from '../lease/permanent.ts'
import { type AllowList, isPublicAddress } from './addresses.ts'

type Resolve = (
  hostname: string,
  options: LookupOptions & { readonly all: true },
  answer: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void

export interface DoorRules {
  readonly allowPrivate: boolean
  readonly allow: AllowList
  /** As `node:dns` does unless given. */
  readonly resolve?: Resolve
}

export class SafeConnect {
  readonly #rules: DoorRules

  constructor(rules: DoorRules) {
    this.#rules = rules
  }

  /** Throws a Permanent where the URL may not be called, as far as that can be told without a lookup. */
  check(url: URL): void {
    const hostname = url.hostname.replace(/^\[|\]$/g, '')
    if (isIP(hostname) !== 0 && !this.#mayReach(hostname)) throw refused(hostname, hostname)
  }

  /** What Node asks for the addresses of a name before it connects. */
  readonly lookup: LookupFunction = (hostname, options, answer) => {
    const resolve = this.#rules.resolve ?? (lookup as Resolve)
    resolve(hostname, { ...options, all: true }, (error, addresses) => {
      if (error) return answer(error, '')
      const open = this.#rules.allow.allowsName(hostname)
        ? addresses
        : addresses.filter(({ address }) => this.#mayReach(address))
      const [first] = open
      if (!first) return answer(refused(hostname, addresses[0]?.address ?? 'nothing'), '')
      if (options.all) return answer(null, open)
      return answer(null, first.address, first.family)
    })
  }

  #mayReach(address: string): boolean {
    const { allowPrivate, allow } = this.#rules
    return allowPrivate || isPublicAddress(address) || allow.allowsAddress(address)
  }
}

function refused(hostname: string, address: string): Permanent {
  const where = hostname === address ? address : `${hostname}, which is ${address}`
  return new Permanent(`Webhooks may not go to ${where}: it is not a public address. See allowPrivate and allow.`)
}
