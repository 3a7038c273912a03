// The entry file of the store's own thread. The thread ends with the store, because only the port keeps it alive.

import { type MessagePort, parentPort, workerData } from 'node:worker_threads'
import type { ThreadData } from './port.ts'
import { serve } from './serve.ts'

serve(parentPort as MessagePort, workerData as ThreadData)
