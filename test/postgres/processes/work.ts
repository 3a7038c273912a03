// The work of the processes here: every job leaves a row in a table of the application and one in kv, and the table would
// take a second one.
import { defineQueue } from '../../../src/definition.ts'
import type { Lease } from '../../../src/lease.ts'

export const work = defineQueue<string, string>('work', { attempts: 200, retain: { done: Number.POSITIVE_INFINITY } })

export const table = 'create table effect (job uuid not null)'

export function done(lease: Lease<string, string>) {
  const { id } = lease.job
  return lease.done(id, {
    put: [{ key: `done ${id}`, value: id }],
    sql: [{ text: 'insert into effect (job) values ($1)', values: [id] }],
  })
}
