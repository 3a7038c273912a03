// Takes its time to load.
import { setTimeout as sleep } from 'node:timers/promises'

await sleep(700)

export default () => 'loaded'
