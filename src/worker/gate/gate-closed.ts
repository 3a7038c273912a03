/** What a handler throws to say that the gate must be closed: its job is released without cost, and workers idle. */
export class GateClosed extends Error {
  readonly reason: string

  constructor(reason: string, options?: ErrorOptions) {
    super(reason, options)
    this.name = 'GateClosed'
    this.reason = this.message
  }
}
