import { join } from 'node:path'
import { open } from '../../src/open.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { conformance } from './index.ts'

conformance({
  name: 'sqlite file',
  async open() {
    const scratch = await scratchDirectory()
    const clock = new VirtualClock()
    const client = (options = {}) => open(`sqlite:${join(scratch.path, 'jobs.db')}`, { clock, ...options })
    return { clock, client, close: () => scratch[Symbol.asyncDispose]() }
  },
})
