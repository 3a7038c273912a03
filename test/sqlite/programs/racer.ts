// Waits for the test, opens the file, enqueues one job for every key, and prints the answers.
//   racer.ts <path> <keys>
import { open } from '../../../src/open.ts'
import { go, say } from './conversation.ts'

const [path = '', keys] = process.argv.slice(2)

await go()
await using holdfast = await open(`sqlite:${path}`)
const race = holdfast.queue('race')
const answers = Array.from({ length: Number(keys) }, (_, n) =>
  race.enqueue({ pid: process.pid, n }, { dedup: { key: `key ${n}` } }),
)
say(await Promise.all(answers))
