// Known-bad variants of the source. Each replaces the text that keeps a promise by a plausible mistake. The torture run of such a
// tree must fail and name that promise.

import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from '../support/checkout.ts'
import type { Promised } from './judge.ts'
import type { StoreName } from './site.ts'

export interface Variant {
  readonly store: StoreName
  readonly breaks: Promised
  /** Another promise that it breaks, and whose violation may be found first. */
  readonly breaksAlso?: Promised
  readonly patches: readonly Patch[]
}

interface Patch {
  readonly file: string
  readonly from: string
  readonly to: string
}

const capForgotten: Patch = {
  file: 'src/job/transition.ts',
  from: `if (attempts >= core.maxAttempts) return { to: 'dead', attempts, ending: 'expired', error }`,
  to: '',
}

export const variants: Readonly<Record<string, Variant>> = {
  'sqlite: a settle without its fence': {
    store: 'sqlite',
    breaks: 'a settlement is applied with its fence, once, as it was answered',
    patches: [
      {
        file: 'src/store/sqlite/renew.ts',
        from: 'tuple && tuple[column.token] === token && tuple[column.id] === id',
        to: 'tuple && tuple[column.id] === id',
      },
    ],
  },

  'postgres: a settle without its fence': {
    store: 'postgres',
    breaks: 'a settlement is applied with its fence, once, as it was answered',
    patches: [
      {
        file: 'src/store/postgres/settle.ts',
        from: `Promise<AnswerOrPromise[]> {
  if (requests.some(`,
        to: `Promise<AnswerOrPromise[]> {
  requests = await Promise.all(
    requests.map(async (request) => {
      const text = \`select replace(l.token::text, '-', ''), j.lane, j.ready_xid::text, j.ord::text
        from holdfast.job j join holdfast.lease l on j.ready_xid = any (l.xids) and j.ord = any (l.ords)
       where j.id = $1 order by l.no desc limit 1\`
      const [row] = await context.db.query(text, [request.id])
      if (!row) return request
      return { ...request, fence: [...row, request.id.slice(-12)].join('.') }
    }),
  )
  if (requests.some(`,
      },
    ],
  },

  'sqlite: a sweep that forgets the attempt cap': {
    store: 'sqlite',
    breaks: 'attempts add up and stay below the cap',
    patches: [capForgotten],
  },

  'postgres: a sweep that forgets the attempt cap': {
    store: 'postgres',
    breaks: 'attempts add up and stay below the cap',
    patches: [capForgotten],
  },

  'postgres: a cursor that forgets gaps': {
    store: 'postgres',
    breaks: 'no ready job is hidden',
    patches: [
      {
        file: 'src/store/postgres/schema/functions/claim.ts',
        from: 'where x.xid >= v_cursor.xid and x.xid < v_next.xid',
        to: 'where false',
      },
    ],
  },

  'sqlite: an enqueue acknowledged before its commit': {
    store: 'sqlite',
    breaks: 'every answered enqueue is stored once, every other at most once, one rolled back never',
    patches: [
      {
        file: 'src/store/sqlite/engine.ts',
        from: `      tx.finish()
      this.#pagesInLog += pagesACommit`,
        to: `      tx.finish()
      const enqueues = replies.filter(({ verb }) => verb === 'enqueue')
      if (enqueues.length > 0) {
        this.early?.(enqueues, noNotices)
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20)
      }
      this.#pagesInLog += pagesACommit`,
      },
      {
        file: 'src/store/sqlite/engine.ts',
        from: '  run(calls: readonly Call[], deliver: Deliver): void {',
        to: `  early: Deliver | undefined
  run(calls: readonly Call[], deliver: Deliver): void {
    this.early = deliver`,
      },
      {
        file: 'src/store/sqlite/engine.ts',
        from: 'deliver(committed.replies, committed.notices) //',
        to: `deliver(committed.replies.filter(({ verb }) => verb !== 'enqueue'), committed.notices) //`,
      },
    ],
  },

  'postgres: an enqueue acknowledged before its commit': {
    store: 'postgres',
    breaks: 'every answered enqueue is stored once, every other at most once, one rolled back never',
    breaksAlso: 'jobs are claimed in the order in which they became ready', // a later enqueue of another process may commit first
    patches: [
      {
        file: 'src/store/postgres/enqueue.ts',
        from: '  if (requests.every(goesPlainly)) return enqueuePlain(context, requests)\n',
        to: `  if (requests.every(goesPlainly)) {
    beforeIt = beforeIt.then(() => enqueuePlain(context, requests)).catch(() => undefined)
    return requests.map(({ jobs }) => jobs.map(({ id }) => ({ id, status: 'created' })))
  }
`,
      },
      {
        file: 'src/store/postgres/enqueue.ts',
        from: 'function zip<A, B>',
        to: `let beforeIt: Promise<unknown> = Promise.resolve() // one after the other, to keep their order

function zip<A, B>`,
      },
    ],
  },

  'sqlite: effects applied outside the settlement': {
    store: 'sqlite',
    breaks: 'effects are applied all or not at all',
    patches: [
      {
        file: 'src/store/sqlite/settle.ts',
        from: `  if (!leased) return 'lost'`,
        to: `  if (!leased) {
    if ('effects' in request.settlement && request.settlement.effects) applyEffects(tx, request.settlement.effects)
    return 'lost'
  }`,
      },
    ],
  },

  'postgres: effects applied outside the settlement': {
    store: 'postgres',
    breaks: 'effects are applied all or not at all',
    patches: [
      {
        file: 'src/store/postgres/in-turn.ts',
        from: `      const job = leased.get(request)
`,
        to: `      const job = leased.get(request)
      const staged = this.#verb.effectsOf(request)
      if (!job && staged) await tx.attempt(async () => writer.apply([staged]))
`,
      },
    ],
  },

  'sqlite: counts updated beside the settlement': {
    store: 'sqlite',
    breaks: 'counts equal a recount',
    patches: [
      {
        file: 'src/store/sqlite/transaction.ts',
        from: '    for (const q of this.#touched) {\n      this.db.run(',
        to: '    for (const q of this.#touched) {\n      if (q.done % 10 === 9) continue\n      this.db.run(',
      },
    ],
  },

  'postgres: counts updated beside the settlement': {
    store: 'postgres',
    breaks: 'counts equal a recount',
    patches: [
      {
        file: 'src/store/postgres/schema/functions/settle-done.ts',
        from: 'from gone g group by v_queues[g.i]\n    ),\n    batched',
        to: 'from gone g where random() < 0.9 group by v_queues[g.i]\n    ),\n    batched',
      },
    ],
  },

  'sqlite: counts of a batch updated beside the settlement': {
    store: 'sqlite',
    breaks: 'a batch has each of its items once, and counts how they ended',
    patches: [
      {
        file: 'src/store/sqlite/batch/batches.ts',
        from: '    row[countOf(state)] += change\n',
        to: `    if (state !== 'done' || Math.random() < 0.9) row[countOf(state)] += change\n`,
      },
    ],
  },

  'postgres: counts of a batch updated beside the settlement': {
    store: 'postgres',
    breaks: 'a batch has each of its items once, and counts how they ended',
    patches: [
      {
        file: 'src/store/postgres/schema/functions/settle-done.ts',
        from: 'select v_batches[g.i], pg_current_xact_id(), -count(*), count(*)\n',
        to: 'select v_batches[g.i], pg_current_xact_id(), -count(*), count(*) filter (where random() < 0.9)\n',
      },
    ],
  },

  'sqlite: a limit that is not kept during rescue': {
    store: 'sqlite',
    breaks: 'of a queue, a key and a batch no more jobs run at once than allowed',
    patches: [
      {
        file: 'src/store/sqlite/job.ts',
        from: '  if (ord !== null) return listOrHold(tx, queue, job, ord)\n  listScheduled(',
        to: `  if (ord !== null && next.front && job.limit_key !== null) {
    tx.keys.admit(queue, tx.keys.row(queue, job.limit_key))
    listReady(tx, queue, job, ord)
    tx.recordChange(queue, 'ready', job.id)
    return 'ready'
  }
  if (ord !== null) return listOrHold(tx, queue, job, ord)
  listScheduled(`,
      },
    ],
  },

  'postgres: a limit that is not kept during rescue': {
    store: 'postgres',
    breaks: 'of a queue, a key and a batch no more jobs run at once than allowed',
    patches: [
      {
        file: 'src/store/postgres/schema/functions/apply-verdict.ts',
        from: 'u.ready and k.limit_key is not null as held, l.priority',
        to: 'u.ready and k.limit_key is not null and u.lane & 1 = 0 as held, l.priority',
      },
    ],
  },
}

/** Other tests create and delete files here meanwhile, so it is not copied. */
const scratchRoot = join(root, 'test/.tmp')

/** Writes a copy of this tree, with the patches of the variant applied. */
export function plant(directory: string, { patches }: Variant): void {
  for (const part of ['src', 'test', 'package.json'])
    cpSync(join(root, part), join(directory, part), { recursive: true, filter: (path) => path !== scratchRoot })
  symlinkSync(join(root, 'node_modules'), join(directory, 'node_modules'))
  for (const patch of patches) writeFileSync(join(directory, patch.file), patched(directory, patch))
}

/** The text of the file with the patch applied. */
export function patched(directory: string, { file, from, to }: Patch): string {
  const text = readFileSync(join(directory, file), 'utf8')
  if (text.split(from).length !== 2) throw new Error(`${file} does not contain exactly once: ${from}`)
  return text.replace(from, () => to)
}
