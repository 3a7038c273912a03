// The queues of an application that writes a row and its job in one transaction.
import { defineQueue, defineWebhooks } from '../../src/index.ts'

export const extraction = (id: number) => defineQueue<{ id: number }>(`extraction-${id}`)
export const refinement = (id: number) => defineQueue<{ id: number }>(`refinement-${id}`)
export const hooks = defineWebhooks({ secret: 'a long random text', allowPrivate: true })
