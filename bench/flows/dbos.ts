// DBOS: a queue with a bound for each worker. Steps are closures of the workflow, as its documentation shows them.

import { withClient } from '../postgres-contenders.ts'
import type { Contender, Place } from './contender.ts'

interface Dbos {
  setConfig(config: object): void
  launch(): Promise<void>
  shutdown(): Promise<void>
  registerWorkflow(run: (n: number) => Promise<number>, options: object): (n: number) => Promise<number>
  runStep<T>(step: () => Promise<T>, options: object): Promise<T>
  registerQueue(name: string, options: object): Promise<unknown>
  startWorkflow(workflow: unknown, options: object): (n: number) => Promise<unknown>
}

interface Module {
  readonly DBOS: Dbos
}

const packageName: string = '@dbos-inc/dbos-sdk'
/** Runs that are started side by side: each costs a round trip. */
const startAtOnce = 32

export async function openDbos({ url }: Place): Promise<Contender> {
  const { DBOS } = (await import(packageName)) as Module
  let returned = (_: number) => {}
  const three = DBOS.registerWorkflow(
    async (n) => {
      const a = await DBOS.runStep(async () => n, { name: 'a' })
      const b = await DBOS.runStep(async () => a + 1, { name: 'b' })
      const c = await DBOS.runStep(async () => b + 1, { name: 'c' })
      returned(n)
      return c
    },
    { name: 'three' },
  )
  const start = (n: number) => DBOS.startWorkflow(three, { queueName: 'three' })(n)
  return {
    async work(concurrency, told) {
      returned = told
      DBOS.setConfig({ name: 'bench', systemDatabaseUrl: url, runAdminServer: false, logLevel: 'error' })
      await DBOS.launch()
      await DBOS.registerQueue('three', { workerConcurrency: concurrency, minPollingIntervalMs: 1 })
    },
    start,
    async startAll(numbers) {
      for (let at = 0; at < numbers.length; at += startAtOnce)
        await Promise.all(numbers.slice(at, at + startAtOnce).map(start))
    },
    succeeded: () =>
      withClient(url, async (client) => {
        const text = `select count(*)::int as runs from dbos.workflow_status where status = 'SUCCESS'`
        return (await client.query<{ runs: number }>(text)).rows[0]?.runs ?? 0
      }),
    close: () => DBOS.shutdown(),
  }
}
