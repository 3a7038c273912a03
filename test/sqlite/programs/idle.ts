// Opens the file and has nothing more to do. With `busy` it makes an enqueue and does not wait for its answer.
//   idle.ts <path> [busy]
import { open } from '../../../src/open.ts'
import { say } from './conversation.ts'

const [path = '', isBusy] = process.argv.slice(2)
const holdfast = await open(`sqlite:${path}`)
if (isBusy) {
  holdfast
    .queue('mail')
    .enqueue(1)
    .then(({ status }) => say(status))
}
say('idle')
