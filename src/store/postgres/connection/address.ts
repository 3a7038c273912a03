// Where a database is: URLs as people write them, and as they may be shown.

export function isPostgresUrl(url: unknown): url is string {
  return typeof url === 'string' && /^postgres(ql)?:\/\//.test(url)
}

/** How long to wait for a connection. */
export const connectMs = 5_000
/** A connection that is silent for so long asks whether its server is still there: it may have gone without a word. */
export const silentMs = 10_000

export interface PostgresAddress {
  /** As the driver takes it. */
  readonly url: string
  readonly schema?: string
}

/** Takes our own parameter, `schema`, out of the URL; all others are the driver's, and stay letter for letter. */
export function postgresAddress(url: string): PostgresAddress {
  const [base = '', query = ''] = splitOnce(url, '?')
  const schema = new URLSearchParams(query).get('schema')
  if (schema === null) return { url }
  const rest = query.split('&').filter((parameter) => !/^schema(=|$)/.test(parameter))
  return { url: rest.length > 0 ? `${base}?${rest.join('&')}` : base, schema }
}

/** For people: a URL may carry a password, and a message may end up in a log. */
export function withoutPassword(url: string): string {
  return url.replace(/:(?!\/\/).*@/, ':***@').replace(/([?&]password=)[^&]*/gi, '$1***')
}

function splitOnce(text: string, mark: string): string[] {
  const at = text.indexOf(mark)
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)]
}
