// Every bound and default in one place (units last in the name).

export const bounds = {
  payloadBytes: 1024 * 1024,
  resultBytes: 1024 * 1024,
  headersBytes: 16 * 1024,
  kvValueBytes: 256 * 1024,
  /** Of an error with its stack and causes. */
  errorTextBytes: 8 * 1024,
  errorCausesMax: 8,
  progressMessageBytes: 1024,
  /** Of the name of the operator or program that asks for a change. */
  byBytes: 1024,
  /** Ids that a change of many jobs names for each reason for which it has skipped some. */
  skippedIdsMax: 10,
  keyBytes: 512,
  nameLength: 255,
  workerLength: 255,
  attemptsKept: 50,
  /** Requeues and changes by hand that a job's history keeps. */
  jobChangesKept: 50,
  /** A death notice that dies makes another notice, up to this depth. */
  noticeDepth: 8,
  /** Releases, and snoozes shorter than `freeSnoozeMs`. */
  freeReleases: 1_000,
  /** A snooze of at least this long is free without a bound: a job that polls once a minute may do so forever. */
  freeSnoozeMs: 1_000,
  attemptsMax: 10_000,
  priorityMax: 9,
  claimMax: 10_000,
  enqueueMax: 10_000,
  /** Characters of all JSON in one call. */
  requestChars: 64 * 1024 * 1024,
  effectsMax: 10_000,
  pageMax: 1_000,
  /** Texts of the entries of one page. An entry that is larger comes alone on its page. */
  pageBytes: 8 * 1024 * 1024,
  /** Jobs that one call looks at, where no index serves the filter, and the bytes of their texts that it compares. */
  lookMax: 10_000,
  lookBytes: 32 * 1024 * 1024,
  /** Ids, queues or states in one filter. */
  filterListMax: 1_000,
  /** Characters of an error's message in a listing. */
  summaryLength: 200,
  /** Changes of jobs in one page. */
  changesPage: 5_000,
  jsonDepth: 500,
  concurrencyMax: 10_000,
  limitConcurrencyMax: 1_000_000,
  /** A store keeps at most this many starts of a queue or a limit key. */
  rateCountMax: 100_000,
  rateWindowMaxMs: 7 * 86_400_000,
  /** Items of a batch in one call to the store, and characters of JSON among them. */
  itemsMax: 1_000,
  itemsChars: 4 * 1024 * 1024,
  /** The jobs ahead of a job are counted up to this many. */
  aheadMax: 10_000,
  /** Names in the costs of one job. */
  costNamesMax: 100,
  /** Characters of the name of an outcome, a warning or a cost. */
  outcomeLength: 255,
  /** Labels of one job, and bytes of the value of each. */
  labelsMax: 8,
  labelBytes: 128,
  /** Records in the journal of one job. */
  recordsMax: 10_000,
  /** The outcome of a step, as JSON; the body of its record is a little larger. */
  stepOutputBytes: 1024 * 1024,
  partialBytes: 1024 * 1024,
  /** The value of a signal, as JSON. */
  signalBytes: 256 * 1024,
  /** Messages of one name that wait in one mailbox. */
  messagesMax: 100,
  /** Keys whose signals one job awaits. */
  awaitsMax: 100,
  /** How long a signal waits under a key, at most. */
  signalTtlMaxMs: 366 * 86_400_000,
  /** A search by several labels counts the jobs of each up to this many, and goes by the rarest. */
  labelledCountMax: 1_000,
  threadsMax: 256,
  leaseMinMs: 1,
  leaseMaxMs: 7 * 86_400_000,
  /** How long changes are still recorded after the last watcher has polled, and how long they are kept. */
  watchMs: 120_000,
  /** The most jobs whose changes a store keeps. */
  changesKept: 1_000_000,
  /** The most jobs that a watch may name. */
  watchedIds: 1_000,
  /** A cursor lists the transactions in progress, so it grows with the number of connections. */
  cursorLength: 64 * 1024,
} as const

export const defaults = {
  attempts: 5,
  backoff: { baseMs: 10_000, factor: 2, maxMs: 3_600_000, jitter: 0.2 },
  leaseMs: 30_000,
  timeoutMs: 600_000,
  resultWaitMs: 60_000,
  concurrency: 10,
  unwindMs: 5_000,
  stopGraceMs: 30_000,
  retainDoneMs: 86_400_000,
  retainDeadMs: 14 * 86_400_000,
  priority: 5,
  batchConcurrency: 3,
  retainBatchMs: 14 * 86_400_000,
  offerMs: 86_400_000,
  signalTtlMs: 7 * 86_400_000,
} as const
