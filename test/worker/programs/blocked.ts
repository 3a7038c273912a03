// A worker whose thread blocks in native code. It reports when the handler has begun and when the thread is stuck.
import { open } from '../../../src/open.ts'

const [url = ''] = process.argv.slice(2)
const holdfast = await open(url, { logger: false })
const say = (word: string) => process.stdout.write(`${JSON.stringify(word)}\n`)
holdfast.on('job.log', () => say('began'))
holdfast.on('thread.stuck', () => say('stuck'))
holdfast.closeOnSignals({ grace: 0 })
holdfast.work('blockers', new URL('../handlers/blockers.ts', import.meta.url), { threads: 1, unwind: 50 })
