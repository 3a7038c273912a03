// Which addresses a webhook may be delivered to. Its URL comes from outside of the application. So it must not reach what only
// this machine can reach: the machine itself, its network, the metadata service of its cloud. Allowed is what is public by the
// registries of IANA. Everything else is refused, also public IPv6 addresses that embed an IPv4 address.

import { BlockList, isIP } from 'node:net'
import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

const notPublic = networks(
  ...['0.0.0.0/8', '10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.0.0.0/24'],
  ...['192.0.2.0/24', '192.88.99.0/24', '192.168.0.0/16', '198.18.0.0/15', '198.51.100.0/24', '203.0.113.0/24'],
  ...['224.0.0.0/4', '240.0.0.0/4'],
  '168.63.129.16/32', // a metadata service that looks public
)

/** All routed IPv6 addresses, without those that embed an IPv4 address (Teredo, 6to4) or are for documentation. */
const routed = networks('2000::/3')
const notRouted = networks('2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20')

function networks(...all: readonly string[]): BlockList {
  const blocks = new BlockList()
  for (const each of all) {
    const [network = '', prefix] = each.split('/')
    blocks.addSubnet(network, Number(prefix), isIP(network) === 6 ? 'ipv6' : 'ipv4')
  }
  return blocks
}

export function isPublicAddress(address: string): boolean {
  const family = isIP(address)
  if (family === 4) return !notPublic.check(address, 'ipv4')
  return family === 6 && routed.check(address, 'ipv6') && !notRouted.check(address, 'ipv6')
}

/** Host names, addresses and networks that are allowed although they are not public. */
export class AllowList {
  readonly #names = new Set<string>()
  readonly #addresses = new BlockList()

  constructor(entries: readonly string[]) {
    for (const entry of entries) this.#add(entry)
  }

  allowsName(hostname: string): boolean {
    return this.#names.has(hostname.toLowerCase())
  }

  allowsAddress(address: string): boolean {
    return this.#addresses.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4')
  }

  #add(entry: string): void {
    const [network = '', prefix, more] = typeof entry === 'string' ? entry.split('/') : []
    const family = isIP(network) === 6 ? 'ipv6' : 'ipv4'
    const bits = Number(prefix ?? Number.NaN)
    const isNetwork = isIP(network) !== 0 && /^\d+$/.test(prefix ?? '') && bits <= (family === 'ipv6' ? 128 : 32)
    if (more === undefined && isNetwork) this.#addresses.addSubnet(network, bits, family)
    else if (prefix === undefined && isIP(network) !== 0) this.#addresses.addAddress(network, family)
    else if (isHostName(entry)) this.#names.add(entry.toLowerCase())
    else {
      const wanted = `allow takes host names, addresses and networks such as '10.1.0.0/16'; got ${show(entry)}.`
      throw new HoldfastError('INVALID_OPTION', wanted, { option: 'allow', value: entry })
    }
  }
}

function isHostName(entry: unknown): boolean {
  return typeof entry === 'string' && /^[a-z0-9.-]{1,253}$/i.test(entry)
}
