// A handler that runs in a thread.
import type { Job } from '../../../src/index.ts'

export default (job: Job<{ word: string }>): string => {
  job.effects.put('shouted', job.payload.word)
  return job.payload.word.toUpperCase()
}
