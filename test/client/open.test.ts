// How `open` reads a URL.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { open } from '../../src/open.ts'
import { postgresAddress, withoutPassword } from '../../src/store/postgres/connection/address.ts'
import { rejects } from '../conformance/expect.ts'

describe('the URL of a store', () => {
  test('the schema is removed from a PostgreSQL URL, and the rest stays character for character', () => {
    const cases: [string, string, string | undefined][] = [
      ['postgres://h/d', 'postgres://h/d', undefined],
      ['postgres://h/d?schema=jobs', 'postgres://h/d', 'jobs'],
      ['postgres://u:p%20w@h/d?a=1&schema=my%20jobs&b=%2Fx', 'postgres://u:p%20w@h/d?a=1&b=%2Fx', 'my jobs'],
      ['postgresql:///d?host=/run/pg&schema=', 'postgresql:///d?host=/run/pg', ''],
      ['postgres://h/d?search_schema=x', 'postgres://h/d?search_schema=x', undefined],
    ]
    for (const [given, url, schema] of cases) {
      assert.deepEqual(postgresAddress(given), schema === undefined ? { url } : { url, schema })
    }
  })

  test('a URL is never shown with its password', () => {
    const cases: [string, string][] = [
      ['postgres://u:secret@h:5432/d', 'postgres://u:***@h:5432/d'],
      ['postgres://u:se@cr:et/@h/d?x=1', 'postgres://u:***@h/d?x=1'],
      ['u:secret@h/d', 'u:***@h/d'],
      ['postgres://u@h/d?password=secret&x=1', 'postgres://u@h/d?password=***&x=1'],
      ['postgres://u@h:5432/d', 'postgres://u@h:5432/d'],
      ['sqlite:jobs.db', 'sqlite:jobs.db'],
    ]
    for (const [url, shown] of cases) assert.equal(withoutPassword(url), shown)
  })

  test('an invalid URL is refused, and its password is not repeated', async () => {
    for (const url of ['', 'sqlite:', 'mysql://u:secret@h/d', 'postgres:h', 5, null, undefined]) {
      const error = await rejects(open(url as string), 'INVALID_OPTION', { option: 'url' })
      assert.doesNotMatch(JSON.stringify([error.message, error.facts]), /secret/)
    }
  })

  test('if a custom opener fails, the error is STORE_UNAVAILABLE with the cause', async () => {
    const cause = new Error('no such thing.')
    const error = await rejects(
      open(async () => Promise.reject(cause)),
      'STORE_UNAVAILABLE',
    )
    assert.equal(error.message, 'The store could not be opened: no such thing.')
    assert.equal(error.cause, cause)
  })
})

test('an invalid logger is refused before anything is opened', async () => {
  const opened = () => Promise.reject(new Error('It was opened.'))
  await rejects(open(opened, { logger: 'console' as never }), 'INVALID_OPTION', { option: 'logger' })
})
