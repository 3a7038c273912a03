// INSTALLING FUNCTIONS: made with a new schema, or replaced as a set in one that is in use.
//
// REPLACING. PostgreSQL replaces a function in place if its parameters and its result stay as they are. What depends on it
// stays too: grants by hand, views, triggers of the application.
//
// - A function whose result or parameter names have changed cannot be replaced: it is dropped and made anew.
// - A function that an earlier release had and this one has not is dropped.
// - `meta.functions` lists what is ours, as names with parameters and without the schema. A function is ours if it is in the
//   schema, and is in that list or was made in this transaction under one of our names. So a schema that also has functions of
//   the application (`public`) keeps them, also those that the application creates while we migrate.
// - The texts of that list are only compared, never executed.
//
// SESSIONS AT WORK notice nothing: a call runs the text that it found when it began, and the next call finds the new one. All
// of it is one transaction, under the lock that every migration takes, so two releases never mix.
//
// CHECKS. Bodies are not checked while they are made, because functions call each other. `test/postgres/migrate.test.ts` makes
// each once more with the check.

import { hardenFunctions, ourFunctions, signature } from './roles.ts'
import type { Schema } from './schema.ts'

/**
 * With this search path, signatures are written with their schema. Functions call each other, so none is checked as it is made.
 */
const settings =
  'set local search_path = pg_catalog;\nset local check_function_bodies = off;\nset local quote_all_identifiers = off;\n'

/** For a schema without any of them. */
export function createFunctions(schema: Schema, texts: readonly string[]): string {
  const made = texts.map((text) => schema.sql(text).trim()).join('\n\n')
  return `${settings}${made}\n${recordFunctions(schema, texts)}${hardenFunctions(schema)}`
}

export function replaceFunctions(schema: Schema, texts: readonly string[]): string {
  const replaced = texts.flatMap(functionsIn).map((text) => replaceFunction(schema, text))
  return `${settings}${replaced.join('')}${recordFunctions(schema, texts)}${hardenFunctions(schema)}`
}

const statement = /^create (?:or replace )?function holdfast\.\w+\([\s\S]*?\$holdfast\$[\s\S]*?\$holdfast\$;/gm

/** The statements that create functions, without the comments between them. */
export function functionsIn(text: string): string[] {
  return Array.from(text.matchAll(statement), ([found]) => found)
}

function replaceFunction(schema: Schema, text: string): string {
  return `do $replace$
declare
  v_text text := $create$${schema.sql(text).replace(/^create (or replace )?/, 'create or replace ')}$create$;
  v_former regprocedure;
begin
  execute v_text;
exception when invalid_function_definition then -- its result, or the name of a parameter, has changed
  for v_former in select p.oid ${ourFunctions(schema)} and p.proname = '${nameOf(text)}' loop
    execute format('drop function %s', v_former);
  end loop;
  execute v_text;
end $replace$;
`
}

function nameOf(text: string): string {
  return /function holdfast\.(\w+)/.exec(text)?.[1] ?? ''
}

/**
 * Lists the functions that were made in this transaction: they have our names, and their rows in `pg_proc` are not older than it.
 * Functions that were listed before and are not among them are dropped.
 */
function recordFunctions(schema: Schema, texts: readonly string[]): string {
  const names = [...new Set(texts.flatMap(functionsIn).map(nameOf))]
  return `do $holdfast$
declare
  v_ours text[] := array(
    select ${signature} from pg_proc p
     where p.pronamespace = '${schema.quoted}'::regnamespace and p.proname = any ('{${names}}') and age(p.xmin) <= 0 order by 1);
  v_former regprocedure;
begin
  for v_former in select p.oid ${ourFunctions(schema)} and not ${signature} = any (v_ours) loop
    execute format('drop function %s', v_former);
  end loop;
  update ${schema.quoted}.meta set functions = v_ours;
end $holdfast$;
`
}
