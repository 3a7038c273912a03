// Does everything a queue can do, at full speed, until it is killed or told to stop. Everything is in its log. Says when
// it has opened the store, when it has settled its first jobs and, told to `settle`, when it has settled the next.
//   reckless.ts <url> <log> <life> <seed> <mayBeDown>
import { open } from '../../../src/open.ts'
import { go, hear, say } from '../../sqlite/programs/conversation.ts'
import { Journal } from '../journal.ts'
import { Life } from '../life.ts'
import { Random } from '../random.ts'

const [url = '', log = '', life = '', seed = '', down = ''] = process.argv.slice(2)
const mayBeDown = down === 'true'

await go()
const holdfast = await open(url)
const journal = Journal.at(log, { mayBeDown })
const work = new Life({ holdfast, journal, random: new Random(Number(seed)), life, now: Date.now }, { mayBeDown })
say('open')
for (let told: unknown = 'settle'; told === 'settle'; told = await Promise.race([hear(), work.over])) {
  await Promise.race([work.settled, work.over])
  say('settled')
}
await work.stop()
await holdfast.close()
say('stopped')
process.exit(0)
