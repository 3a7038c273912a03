/** The thread that a handler ran in has ended under it. */
export class ThreadCrashed extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'ThreadCrashed'
  }
}
