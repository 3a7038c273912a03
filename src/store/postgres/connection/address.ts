// URLs of databases: as they are written, and as they may be shown.

export function isPostgresUrl(url: unknown): url is string {
  return typeof url === 'string' && /^postgres(ql)?:\/\//.test(url)
}

/** How long to wait for a connection. */
export const connectMs = 5_000
/** After so long without traffic, TCP keepalive asks whether the server is still there. */
export const silentMs = 10_000

export interface PostgresAddress {
  /** In the form that the driver accepts. */
  readonly url: string
  readonly schema?: string
}

/** Removes our own parameter, `schema`, from the URL. All others are the driver's, and stay letter for letter. */
export function postgresAddress(url: string): PostgresAddress {
  const [base = '', query = ''] = splitOnce(url, '?')
  const schema = new URLSearchParams(query).get('schema')
  if (schema === null) return { url }
  const rest = query.split('&').filter((parameter) => !/^schema(=|$)/.test(parameter))
  return { url: rest.length > 0 ? `${base}?${rest.join('&')}` : base, schema }
}

/** For messages: a URL may contain a password, and a message may be logged. */
export function withoutPassword(url: string): string {
  return url.replace(/:(?!\/\/).*@/, ':***@').replace(/([?&]password=)[^&]*/gi, '$1***')
}

function splitOnce(text: string, mark: string): string[] {
  const at = text.indexOf(mark)
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)]
}
