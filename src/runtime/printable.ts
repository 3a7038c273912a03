// Text that a terminal shows and does not execute. Payloads, errors and names come from anywhere. Three kinds of characters are
// dangerous in them:
//
// - C0 and C1 controls: ESC, and U+009B, which some terminals take for ESC [, move the cursor or change the title;
// - bidirectional controls: U+202E and its like show text in another order than it has, so that a name looks like another one;
// - line and paragraph separators, which end a line for some readers.
//
// Each is shown as JSON would write it, `\u202e`, so that JSON stays JSON with the same meaning.

const dangerous = /[\p{Cc}\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu

/** Line breaks and tabs stay; every other control is shown as its code. */
export function escapeControls(text: string): string {
  return text.replace(dangerous, (sign) => (sign === '\n' || sign === '\t' ? sign : codeOf(sign)))
}

/** One line: line breaks and tabs become one space, every other control is shown as its code. */
export function oneLine(text: string): string {
  return escapeControls(text.replace(/[\t\n\v\f\r\u0085\u2028\u2029]+/g, ' ').trim())
}

function codeOf(sign: string): string {
  return `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`
}
