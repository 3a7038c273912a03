// An application that signs people up, each in its own transaction that includes an enqueue and may be rolled back.
//   caller.ts <path> <name> <count>   prints the names that it committed
//   caller.ts <path> <name> hold      enqueues, prints the status, and never ends its transaction
import { DatabaseSync } from 'node:sqlite'
import { open } from '../../../src/open.ts'
import { go, hear, say } from './conversation.ts'

const [path = '', name, count] = process.argv.slice(2)

await using holdfast = await open(`sqlite:${path}`)
const welcome = holdfast.queue<string>('welcome', { retain: { done: '1h' } })
const db = new DatabaseSync(path, { timeout: 60_000 })

await go()
if (count === 'hold') await hold()
else say(signUp(Number(count)))
await holdfast.close()

function signUp(people: number): string[] {
  const committed: string[] = []
  for (let n = 0; n < people; n++) {
    const person = `${name} ${n}`
    db.exec('begin')
    const answered = welcome.enqueue(person, { tx: db, dedup: { key: person } })
    answered.catch((error) => say({ failed: String(error) }))
    db.prepare('insert into account values (?)').run(person)
    db.exec(n % 3 === 0 ? 'rollback' : 'commit')
    if (n % 3 !== 0) committed.push(person)
  }
  return committed
}

async function hold(): Promise<void> {
  db.exec('begin')
  const { status } = await welcome.enqueue('held', { tx: db })
  say(status)
  await hear() // until it is killed
}
