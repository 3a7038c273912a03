import type { Pool } from 'pg'

/** The texts of the statements that are sent from now on. */
export function statementsOf(pool: Pool): readonly string[] {
  const sent: string[] = []
  pool.on('acquire', (client) => {
    if (Object.hasOwn(client, 'query')) return
    const query = client.query.bind(client) as (...args: unknown[]) => unknown
    const recorded = (...args: unknown[]) => {
      const [first] = args as readonly (string | { readonly text: string })[]
      sent.push(typeof first === 'string' ? first : String(first?.text))
      return query(...args)
    }
    client.query = recorded as never
  })
  return sent
}
