// Where the store's own thread starts. It ends with the store, since nothing but the port keeps it.

import { type MessagePort, parentPort, workerData } from 'node:worker_threads'
import type { ThreadData } from './port.ts'
import { serve } from './serve.ts'

serve(parentPort as MessagePort, workerData as ThreadData)
