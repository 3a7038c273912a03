// What each contender of the benchmark does: it runs a flow of three trivial steps.

/** Where the contenders keep their runs. */
export interface Place {
  /** Of a PostgreSQL server, with an empty database for this contender. */
  readonly url: string
  /** An empty folder. */
  readonly directory: string
}

export interface Contender {
  /** Works from now on, with so many runs at a time. Calls `returned` when the function of a run has returned. */
  work(concurrency: number, returned: (n: number) => void): Promise<void>
  /** Starts a run. */
  start(n: number): Promise<unknown>
  /** Starts many runs, in the fastest way there is. */
  startAll(numbers: readonly number[]): Promise<unknown>
  /** How many runs the store says have succeeded. */
  succeeded(): Promise<number>
  close(): Promise<void>
}

export type Open = (place: Place) => Promise<Contender>

export const contenderNames = [
  'holdfast-postgres',
  'holdfast-sqlite',
  'dbos',
  'openworkflow-postgres',
  'openworkflow-sqlite',
] as const

export type ContenderName = (typeof contenderNames)[number]

export async function openContender(name: ContenderName, place: Place): Promise<Contender> {
  switch (name) {
    case 'holdfast-postgres':
    case 'holdfast-sqlite':
      return (await import('./holdfast.ts')).openHoldfast(name === 'holdfast-sqlite', place)
    case 'dbos':
      return (await import('./dbos.ts')).openDbos(place)
    case 'openworkflow-postgres':
    case 'openworkflow-sqlite':
      return (await import('./openworkflow.ts')).openOpenWorkflow(name === 'openworkflow-sqlite', place)
  }
}
