import { type MessagePort, parentPort } from 'node:worker_threads'
import { serve } from '../../src/store/sqlite/thread/serve.ts'
import type { Assignment } from './warm-thread.ts'

;(parentPort as MessagePort).on('message', ({ port, data }: Assignment) => serve(port, data))
