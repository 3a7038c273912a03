// Finds statements of the application that may leave something for later statements: a setting, a role, a temporary object.
//
// WHY. The jobs of a flush are settled in one transaction, each behind a savepoint. Releasing a savepoint keeps what the job
// set: `set_config('app.tenant', 'a', true)` of one job would hold for the SQL effects of the next. The server cannot list what
// was set (a custom setting is in no view), so it cannot be put back. So a job whose statements may set something is settled in
// a transaction of its own, in which it sees its own settings and no other job does.
//
// RULE. A statement may set something if
//
//   - it mentions `set_config` or temporary objects, or is a DO block or a CALL;
//   - it calls a function of the database that is written in SQL or in a procedural language;
//   - it names a table with a trigger whose function does one of these.
//
// The first is seen in its text. For the others the catalogs are asked, once a minute for each text. There are few texts, because
// statements have parameters. Functions of the server and those written in C do not count.
//
// LIMITS. What a trigger's function calls in turn is not followed. Nor is code behind views, policies, defaults, operators and
// casts.
//
// COST. Most lookups are answered from a map. A flush of 100 jobs with one plain insert each was not measurably slower: the
// medians of 40 flushes were 154, 166, 367 and 378 ms with this, and 330 and 364 ms without, on a machine whose speed varied as
// much. Rejected: to read `pg_settings` before and after each job. It takes 1 ms, and lists no custom setting.

import { firstWord } from './statement.ts'

/** What a statement may leave behind: nothing; settings of its transaction only; anything, also in its session. */
export type Leaves = 'nothing' | 'local' | 'anything'

export type AskCatalogs = (text: string, values: readonly string[]) => Promise<readonly (readonly (string | null)[])[]>

const keptMs = 60_000
const keptMax = 1_000

export class Setters {
  readonly #kept = new Map<string, { readonly leaves: Leaves; readonly until: number }>()

  async leaves(text: string, ask: AskCatalogs): Promise<Leaves> {
    const kept = this.#kept.get(text)
    if (kept && performance.now() < kept.until) return kept.leaves
    const leaves = (await callsCode(text, ask)) ? 'anything' : leavesByText(text)
    if (this.#kept.size >= keptMax) this.#kept.clear()
    this.#kept.set(text, { leaves, until: performance.now() + keptMs })
    return leaves
  }
}

/** The most that any of these statements may leave behind. */
export async function mostOf(
  statements: readonly { readonly text: string }[],
  leavesOf: (text: string) => Promise<Leaves>,
): Promise<Leaves> {
  let most: Leaves = 'nothing'
  for (const { text } of statements) {
    const leaves = await leavesOf(text)
    if (leaves === 'anything') return leaves
    if (leaves === 'local') most = leaves
  }
  return most
}

/** What can be seen without the catalogs. */
export function leavesByText(text: string): Leaves {
  if (/^(call|do)$/.test(firstWord(text)) || /\b(temp|temporary|pg_temp)\b/i.test(text)) return 'anything'
  const set = text.match(/\bset_config\b/gi)?.length ?? 0
  if (set === 0) return 'nothing'
  // A doubled quote inside a string is two strings to this pattern: one way to read it. Two ways were tried in all mixes.
  const local = text.match(/\bset_config\s*\((?:'[^']*'|[^()'])*,\s*true\s*\)/gi)?.length ?? 0
  return local === set ? 'local' : 'anything'
}

const setsInSource = `set_config|execute|\\mtemp\\M|\\mtemporary\\M|pg_temp|\\mset\\s+(local|session|role)\\M|(^|;|\\mbegin\\M|\\mthen\\M|\\melse\\M|\\mloop\\M)\\s*(re)?set\\s`

const selectCode = `
  select exists (
      select from pg_catalog.pg_proc p join pg_catalog.pg_language l on l.oid = p.prolang
       where p.proname = any (array(select pg_catalog.jsonb_array_elements_text($1::jsonb))) and l.lanname not in ('internal', 'c')
         and p.pronamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace))
    or exists (
      select from pg_catalog.pg_class c
        join pg_catalog.pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal
        join pg_catalog.pg_proc p on p.oid = t.tgfoid join pg_catalog.pg_language l on l.oid = p.prolang
       where c.relname = any (array(select pg_catalog.jsonb_array_elements_text($2::jsonb)))
         and (l.lanname not in ('internal', 'c', 'plpgsql') or l.lanname = 'plpgsql' and p.prosrc ~* $3))`

async function callsCode(text: string, ask: AskCatalogs): Promise<boolean> {
  // A comment may be between a name and its parenthesis, and what looks like a comment may be inside a string. So both forms
  // are read.
  const names = namesIn(`${text}\n${withoutComments(text)}`)
  if (names.all.length === 0) return false
  const [row] = await ask(selectCode, [JSON.stringify(names.called), JSON.stringify(names.all), setsInSource])
  return row?.[0] === 't'
}

function withoutComments(text: string): string {
  const end = text.lastIndexOf('*/') + 2 // behind it no comment is closed, and the pattern would look for each end in vain
  const [closed, rest] = end < 2 ? ['', text] : [text.slice(0, end), text.slice(end)]
  return closed.replace(/\/\*[\s\S]*?\*\/|--[^\n\r]*/g, ' ') + rest.replace(/--[^\n\r]*/g, ' ')
}

function namesIn(text: string): { readonly all: readonly string[]; readonly called: readonly string[] } {
  const all = new Set<string>()
  const called = new Set<string>()
  for (const [, quoted, plain, parenthesis] of text.matchAll(
    /(?:"((?:[^"]|"")+)"|([a-z_\u0080-\uffff][\w$\u0080-\uffff]*))(\s*\()?/gi,
  )) {
    const name = quoted?.replaceAll('""', '"') ?? (plain as string).toLowerCase()
    all.add(name)
    if (parenthesis !== undefined) called.add(name)
  }
  return { all: [...all], called: [...called] }
}
