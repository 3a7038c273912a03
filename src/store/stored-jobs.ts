import type { Enqueued } from './store.ts'

/** Whether the payload of this enqueue is in the store: it was created, or replaced that of the job that holds its key. */
export function isStored({ status }: Enqueued): boolean {
  return status === 'created' || status === 'replaced'
}
