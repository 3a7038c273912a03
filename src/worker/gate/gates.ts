// The gates of a client: one object for each name, so that all parts of a process share what is known of it.

import { HoldfastError } from '../../errors.ts'
import { checkGateName } from '../../job/names.ts'
import { Gate, type GateContext, type GateOptions } from './gate.ts'
import { type GateState, gateKeyPrefix, readGate } from './gate-state.ts'

export type GateInfo = GateState & { readonly name: string }

const gatesMax = 10_000

export class Gates {
  readonly #context: GateContext
  readonly #gates = new Map<string, Gate>()

  constructor(context: GateContext) {
    this.#context = context
  }

  /** Options count in the first call for a name. */
  get(name: string, options: GateOptions): Gate {
    const known = this.#gates.get(checkGateName(name))
    const gate = known ?? new Gate(this.#context, name, options)
    if (!known && this.#gates.size >= gatesMax) {
      const sentence = `A client has at most ${gatesMax} gates; let several jobs share one.`
      throw new HoldfastError('INVALID_NAME', sentence, { name })
    }
    this.#gates.set(name, gate)
    return gate
  }

  /** Every gate of the store that was ever closed, by name. */
  async list(): Promise<GateInfo[]> {
    const infos: GateInfo[] = []
    for await (const entry of this.#context.kv.scan(gateKeyPrefix)) {
      infos.push({ name: entry.key.slice(gateKeyPrefix.length), ...readGate(entry).state })
    }
    return infos
  }

  end(): void {
    for (const gate of this.#gates.values()) gate.end()
  }
}
