// An HTTP server and a worker in one process, each of which a signal ends. It says what happens on its stdout; told anything, it
// lets the jobs end, and told again, it answers the requests.
//   serves.ts <url> <how the server listens to the signal: on, once, before or none> <clients>
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { open } from '../../../src/open.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'

export type Said =
  | { readonly port: number }
  | { readonly heard: 'request' | 'signal' }
  | { readonly began: number }
  | { readonly ended: number; readonly isAborted: boolean }
  | { readonly closed: number }

const [url = '', how = '', clients = '1'] = process.argv.slice(2)
const toldJobs = Promise.withResolvers<void>()
const toldRequests = Promise.withResolvers<void>()

const server = createServer(async (_request, response) => {
  say({ heard: 'request' } satisfies Said)
  await toldRequests.promise
  response.end('answered')
})
const onSignal = () => {
  say({ heard: 'signal' } satisfies Said)
  server.close()
}
if (how === 'before') process.once('SIGTERM', onSignal)
for (let client = 0; client < Number(clients); client++) {
  const holdfast = await open(url, { logger: false })
  const sayClosed = () => setImmediate(() => say({ closed: client } satisfies Said))
  holdfast.on('worker.stopping', () => holdfast.close({ grace: '20s' }).then(sayClosed)) // the same close
  holdfast.closeOnSignals({ grace: '20s' })
  holdfast.work(`tasks-${client}`, async (job) => {
    say({ began: client } satisfies Said)
    await (client === 0 ? toldJobs : toldRequests).promise // the second client's take longer
    say({ ended: client, isAborted: job.signal.aborted } satisfies Said)
  })
}
if (how === 'on') process.on('SIGTERM', onSignal)
if (how === 'once') process.once('SIGTERM', onSignal)
if (how !== 'none') await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
say({ port: (server.address() as AddressInfo | null)?.port ?? 0 } satisfies Said)

await hear()
toldJobs.resolve()
await hear()
toldRequests.resolve()
process.stdin.destroy() // it would keep the process
