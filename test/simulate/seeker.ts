// A thread that makes the run of every seed that it gets, and answers with what was found.

import { parentPort } from 'node:worker_threads'
import { report, search } from './search.ts'

parentPort?.on('message', async (seed: number) => {
  const finding = await search({ seed, goesOn: (runs) => runs < 1 })
  parentPort?.postMessage(finding && report(finding))
})
