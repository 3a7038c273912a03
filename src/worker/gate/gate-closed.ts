/** A handler throws this to close the gate. Its job is released at no cost, and workers wait until the gate is opened again. */
export class GateClosed extends Error {
  readonly reason: string

  constructor(reason: string, options?: ErrorOptions) {
    super(reason, options)
    this.name = 'GateClosed'
    this.reason = this.message
  }
}
