import { join } from 'node:path'
import type { Contender, Place } from './contender.ts'

interface Backend {
  countWorkflowRuns?(): Promise<Readonly<Record<string, number>>>
  stop(): Promise<void>
}

interface Step {
  run<T>(options: { name: string }, step: () => Promise<T>): Promise<T>
}

interface Workflow {
  run(input: { n: number }): Promise<unknown>
}

interface Client {
  defineWorkflow(spec: object, run: (context: { input: { n: number }; step: Step }) => Promise<number>): Workflow
  newWorker(options: { concurrency: number }): { start(): Promise<void>; stop(): Promise<void> }
}

interface Module {
  readonly OpenWorkflow: new (options: { backend: Backend }) => Client
}
interface PostgresModule {
  readonly BackendPostgres: { connect(url: string): Promise<Backend> }
}
interface SqliteModule {
  readonly BackendSqlite: { connect(path: string): Backend }
}

const packageName: string = 'openworkflow'
/** Runs that are started side by side: each costs a round trip. */
const startAtOnce = 32

export async function openOpenWorkflow(isSqlite: boolean, { url, directory }: Place): Promise<Contender> {
  const { OpenWorkflow } = (await import(packageName)) as Module
  const backend = isSqlite
    ? ((await import(`${packageName}/sqlite`)) as SqliteModule).BackendSqlite.connect(join(directory, 'runs.db'))
    : await ((await import(`${packageName}/postgres`)) as PostgresModule).BackendPostgres.connect(url)
  const client = new OpenWorkflow({ backend })
  let returned = (_: number) => {}
  const three = client.defineWorkflow({ name: 'three' }, async ({ input: { n }, step }) => {
    const a = await step.run({ name: 'a' }, async () => n)
    const b = await step.run({ name: 'b' }, async () => a + 1)
    const c = await step.run({ name: 'c' }, async () => b + 1)
    returned(n)
    return c
  })
  let worker: { start(): Promise<void>; stop(): Promise<void> } | null = null
  return {
    async work(concurrency, told) {
      returned = told
      worker = client.newWorker({ concurrency })
      await worker.start()
    },
    start: (n) => three.run({ n }),
    async startAll(numbers) {
      for (let at = 0; at < numbers.length; at += startAtOnce)
        await Promise.all(numbers.slice(at, at + startAtOnce).map((n) => three.run({ n })))
    },
    async succeeded() {
      const counts = (await backend.countWorkflowRuns?.()) ?? {}
      return counts['completed'] ?? counts['succeeded'] ?? 0
    },
    async close() {
      await worker?.stop()
      await backend.stop()
    },
  }
}
