// Claims a job with a short lease, prints a line, and stays until it is killed.
import { open } from '../../../src/index.ts'

const holdfast = await open(process.argv[2] ?? '')
await holdfast.claim(['mail'], { lease: 1, worker: 'gone' })
console.log('claimed')
setInterval(() => {}, 1_000)
