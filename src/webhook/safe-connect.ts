// Outgoing connections of webhooks. A name is resolved once, its addresses are checked, and the connection is made to an address
// that was checked. So a name that resolves to another address a moment later (DNS rebinding) has no effect. Node never looks up
// an IP address in a URL, so that is checked before the request.

import { type LookupAddress, type LookupOptions, lookup } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import { Permanent } from '../lease/permanent.ts'
import { type AllowList, isPublicAddress } from './addresses.ts'

type Resolve = (
  hostname: string,
  options: LookupOptions & { readonly all: true },
  answer: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void

export interface ConnectRules {
  readonly allowPrivate: boolean
  readonly allow: AllowList
  /** The resolver; `lookup` of `node:dns` unless given. */
  readonly resolve?: Resolve
}

export class SafeConnect {
  readonly #rules: ConnectRules

  constructor(rules: ConnectRules) {
    this.#rules = rules
  }

  /** Throws a Permanent if the URL is an IP address that may not be called. Names are checked in `lookup`. */
  check(url: URL): void {
    const hostname = url.hostname.replace(/^\[|\]$/g, '')
    if (isIP(hostname) !== 0 && !this.#mayReach(hostname)) throw refused(hostname, hostname)
  }

  /** Node calls this for the addresses of a name before it connects. */
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
  const where = hostname === address ? address : `${hostname}, which resolves to ${address}`
  return new Permanent(`Webhooks may not go to ${where}: it is not a public address. See allowPrivate and allow.`)
}
