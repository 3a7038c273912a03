/** The thread of a handler ended before the handler did. */
export class ThreadCrashed extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'ThreadCrashed'
  }
}
