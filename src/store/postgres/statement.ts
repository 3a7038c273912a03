// Finds statements that a settlement must not run: they would end the transaction that they are part of, or change the session
// for the next call that uses it.

const refused =
  /^(abort|begin|checkpoint|close|commit|deallocate|declare|discard|end|listen|prepare|release|reset|rollback|savepoint|set|start|unlisten)$/

export function changesSession(text: string): boolean {
  return refused.test(firstWord(text))
}

/** The first word in lower case, after white space, semicolons and comments, which may be nested. */
export function firstWord(text: string): string {
  let at = 0
  for (;;) {
    const blank = /[\s;]*(?:--[^\n\r]*)?/y
    blank.lastIndex = at
    const skipped = blank.exec(text)?.[0].length ?? 0
    at += skipped
    if (text.startsWith('/*', at)) at = afterComment(text, at)
    else if (skipped === 0) return /^[a-z]*/i.exec(text.slice(at))?.[0].toLowerCase() ?? ''
  }
}

function afterComment(text: string, start: number): number {
  let depth = 0
  for (let at = start; at < text.length; at++) {
    if (text.startsWith('/*', at)) {
      depth += 1
      at += 1
    } else if (text.startsWith('*/', at)) {
      depth -= 1
      at += 1
      if (depth === 0) return at + 1
    }
  }
  return text.length
}
