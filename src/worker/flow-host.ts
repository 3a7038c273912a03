// What the execution of a flow needs of the run that it is part of, and what it is told by it.

import type { Events } from '../events.ts'
import type { Message } from '../job/journal.ts'
import type { JobState } from '../job/record.ts'
import type { Settlement } from '../job/transition.ts'
import type { Define } from '../queue/effects.ts'
import type { Capabilities, ClaimedJob, Journal, JournalQuery, MessagesQuery } from '../store/store.ts'
import type { CheckpointBuffer } from './checkpoint-buffer.ts'
import type { AbortKind } from './normalise.ts'

/** A wait that is shorter keeps the lease and its slot, because giving them back would cost more. */
export interface KeptWaits {
  readonly sleepMs: number
  readonly retryMs: number
}

export interface FlowHost {
  readonly claimed: ClaimedJob
  readonly worker: string
  readonly events: Events
  readonly capabilities: Capabilities
  readonly define: Define
  readonly buffer: CheckpointBuffer
  readonly keptWaits: KeptWaits
  readonly abortKind: AbortKind | null
  now(): number
  /** The store's time, or a little earlier. */
  storeNow(): number
  after(ms: number, call: () => void): () => void
  random(): number
  signal(): AbortSignal
  /** What waits in the buffer is sent in the next turn of the event loop, unless the flow `endsInstead`. */
  askCheckpoint(): void
  messages(query: MessagesQuery): Promise<Message[]>
  journal(query: JournalQuery): Promise<Journal | null>
  /** The timeout of the job counts for the code between steps. */
  pauseTimeout(): void
  restartTimeout(): void
  attach(flow: FlowListener): void
}

export interface FlowListener {
  /** An attempt of a step is under way, or waits to be repeated. */
  readonly hasStepInFlight: boolean
  /** A turn of the event loop is over. True: the run ends now, and takes along what waits in the buffer. */
  endsInstead(): boolean
  /** A checkpoint was answered. */
  checkpointed(): void
  /** A checkpoint could not be sent. */
  failed(error: Error): void
  settled(settlement: Settlement, state: JobState, runAt: number | null): void
}
