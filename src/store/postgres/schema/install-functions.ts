// INSTALLING FUNCTIONS: made with a new schema, or replaced as a set in one that is in use.
//
// REPLACING. PostgreSQL replaces a function in place if its parameters and its result stay as they are. What depends on it
// stays too: grants by hand, views, triggers of the application.
//
// - A function whose result or parameter names have changed cannot be replaced: it is dropped and made anew.
// - A function that an earlier release had and this one has not is dropped.
// - `meta.functions` lists what is ours, so a schema that also has functions of the application (`public`) keeps them.
//
// SESSIONS AT WORK notice nothing: a call runs the text that it found when it began, and the next call finds the new one. All
// of it is one transaction, under the lock that every migration takes, so two releases never mix.
//
// CHECKS. Bodies are not checked while they are made, because functions call each other. `test/postgres/migrate.test.ts` makes
// each once more with the check.

import { hardenFunctions } from './roles.ts'
import type { Schema } from './schema.ts'

/**
 * With this search path, signatures are written with their schema. Functions call each other, so none is checked as it is made.
 */
const settings = 'set local search_path = pg_catalog;\nset local check_function_bodies = off;\n'

/** For a schema without any of them. */
export function createFunctions(schema: Schema, texts: readonly string[]): string {
  const made = texts.map((text) => schema.sql(text).trim()).join('\n\n')
  return `${settings}${made}\n${recordFunctions(schema)}${hardenFunctions(schema)}`
}

export function replaceFunctions(schema: Schema, texts: readonly string[]): string {
  const replaced = texts.flatMap(functionsIn).map((text) => replaceFunction(schema, text))
  return `${settings}${replaced.join('')}${recordFunctions(schema)}${hardenFunctions(schema)}`
}

const statement = /^create (?:or replace )?function holdfast\.\w+\([\s\S]*?\$holdfast\$[\s\S]*?\$holdfast\$;/gm

/** The statements that create functions, without the comments between them. */
export function functionsIn(text: string): string[] {
  return Array.from(text.matchAll(statement), ([found]) => found)
}

function replaceFunction(schema: Schema, text: string): string {
  const name = /function holdfast\.(\w+)/.exec(text)?.[1]
  return `do $replace$
declare
  v_text text := $create$${schema.sql(text).replace(/^create (or replace )?/, 'create or replace ')}$create$;
  v_former text;
begin
  execute v_text;
exception when invalid_function_definition then -- its result, or the name of a parameter, has changed
  for v_former in
    select u.signature from ${schema.quoted}.meta m, unnest(m.functions) u(signature)
      join pg_proc p on p.oid = to_regprocedure(u.signature)
     where p.proname = '${name}'
  loop
    execute format('drop function %s', v_former);
  end loop;
  execute v_text;
end $replace$;
`
}

/**
 * Lists the functions that were made in this transaction: their rows in `pg_proc` are not older than it. Functions that were
 * listed before and are not among them are dropped.
 */
function recordFunctions(schema: Schema): string {
  return `do $holdfast$
declare
  v_ours text[] := array(
    select p.oid::regprocedure::text from pg_proc p
     where p.pronamespace = '${schema.quoted}'::regnamespace and age(p.xmin) <= 0 order by 1);
  v_former text;
begin
  for v_former in
    select u.signature from ${schema.quoted}.meta m, unnest(m.functions) u(signature)
     where not u.signature = any (v_ours) and to_regprocedure(u.signature) is not null
  loop
    execute format('drop function %s', v_former);
  end loop;
  update ${schema.quoted}.meta set functions = v_ours;
end $holdfast$;
`
}
