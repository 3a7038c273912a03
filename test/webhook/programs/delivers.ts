// Delivers webhooks until it is killed.
//   delivers.ts <store>
import { defineWebhooks } from '../../../src/index.ts'
import { open } from '../../../src/open.ts'

const [store = ''] = process.argv.slice(2)
const holdfast = await open(store)
defineWebhooks({ secret: 's1', allowPrivate: true }).work(holdfast, { lease: '1s' })
console.log(JSON.stringify('ready'))
