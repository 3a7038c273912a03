// Reads the parts of a statement that the store needs before SQLite runs it: its first word, and its parameters. Comments and
// quotes follow the rules of SQLite: comments do not nest, a line ends with a line feed, and an open one extends to the end.

const blank = /(?:[\s;]+|--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))*/y

/** In lower case; white space, semicolons and comments before it are skipped. */
export function firstWord(text: string): string {
  return /^[a-z]*/i.exec(text.slice(afterBlank(text)))?.[0].toLowerCase() ?? ''
}

/** Nothing but white space, semicolons and comments. */
export function isBlank(text: string): boolean {
  return afterBlank(text) === text.length
}

function afterBlank(text: string): number {
  blank.lastIndex = 0
  return blank.exec(text)?.[0].length ?? 0
}

export interface Parameters {
  /** The number of parameters that are a bare `?`. */
  readonly bare: number
  /** `$1` and `?1`, each with its number. */
  readonly numbered: ReadonlyMap<string, number>
  /** `:name`, `@name` and `$name`. */
  readonly named: readonly string[]
}

const quoted = /'[^']*(?:''[^']*)*'|"[^"]*(?:""[^"]*)*"|`[^`]*(?:``[^`]*)*`|\[[^\]]*\]/
const comment = /--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/
const word = /[\w\u0080-\uffff][\w$\u0080-\uffff]*/
const parameter = /(\?\d*|[$@:][\w$\u0080-\uffff]+(?:::[\w$\u0080-\uffff]*)*)/
const token = new RegExp([quoted, comment, word, parameter].map(({ source }) => source).join('|'), 'g')

export function parametersOf(text: string): Parameters {
  const found = Array.from(text.matchAll(token), ([, name]) => name).filter((name) => name !== undefined)
  const isNumbered = (name: string) => /^[$?]\d+$/.test(name)
  return {
    bare: found.filter((name) => name === '?').length,
    numbered: new Map(found.filter(isNumbered).map((name) => [name, Number(name.slice(1))])),
    named: found.filter((name) => name !== '?' && !isNumbered(name)),
  }
}
