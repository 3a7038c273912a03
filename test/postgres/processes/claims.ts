// Claims as many jobs as there are in one call, and prints how many that were.
//   claims.ts <url>
import { open } from '../../../src/open.ts'
import { say } from '../../sqlite/programs/conversation.ts'

const [url = ''] = process.argv.slice(2)
await using holdfast = await open(url)
say({ claimed: (await holdfast.claim(['mail'], { max: 1_000 })).length })
