// Loads slowly.
import { setTimeout as sleep } from 'node:timers/promises'

await sleep(700)

export default () => 'loaded'
