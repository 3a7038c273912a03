// Brings everything that is left to its end, and says whether it could.
//   drains.ts <url> <log> <seed> <ms>
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from '../../../src/open.ts'
import { say } from '../../sqlite/programs/conversation.ts'
import { drain } from '../drain.ts'
import { Journal } from '../journal.ts'
import { Random } from '../random.ts'

const [url = '', log = '', seed = '', maxMs = ''] = process.argv.slice(2)
await using holdfast = await open(url)
const journal = Journal.at(log, { mayBeDown: false })
const world = { holdfast, journal, random: new Random(Number(seed)), life: 'drain', now: Date.now }
say({ drained: await drain(world, { pass: sleep, maxMs: Number(maxMs) }) })
