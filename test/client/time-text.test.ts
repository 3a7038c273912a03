// Times as text.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseTime } from '../../src/runtime/time-text.ts'

test('dates, and dates with times, are read as ISO 8601 has them, in UTC unless a zone is given', () => {
  const at = (...parts: [number, number, number, number?, number?, number?, number?]) => Date.UTC(...parts)
  const times: readonly [string, number][] = [
    ['2030-01-31', at(2030, 0, 31)],
    ['2028-02-29', at(2028, 1, 29)],
    ['1970-01-01', 0],
    ['0001-01-01', Date.parse('0001-01-01T00:00:00Z')],
    ['9999-12-31T23:59:59.999Z', at(9999, 11, 31, 23, 59, 59, 999)],
    ['2030-01-31T09:05', at(2030, 0, 31, 9, 5)],
    ['2030-01-31T09:05:07', at(2030, 0, 31, 9, 5, 7)],
    ['2030-01-31 09:05:07Z', at(2030, 0, 31, 9, 5, 7)],
    ['2030-01-31T09:05:07.5Z', at(2030, 0, 31, 9, 5, 7, 500)],
    ['2030-01-31T09:05:07.123456789Z', at(2030, 0, 31, 9, 5, 7, 123)],
    ['2030-01-31T09:05+02:00', at(2030, 0, 31, 7, 5)],
    ['2030-01-31T23:05:07-05:30', at(2030, 1, 1, 4, 35, 7)],
  ]
  for (const [text, time] of times) assert.equal(parseTime(text), time, text)
})

test('anything else is no time, also where the calendar has no such day and the clock no such hour', () => {
  const texts = [
    ...[
      '',
      'x',
      'yesterday 5',
      '5',
      '2030',
      '2030-01',
      '20300131',
      '1893456000000',
      '-1',
      '1h',
      'May 5 2030',
      '31/01/2030',
    ],
    ...[
      '2030-02-29',
      '2030-02-30',
      '2030-13-01',
      '2030-00-10',
      '2030-04-31',
      '2030-01-00',
      '+02030-01-31',
      '12030-01-31',
    ],
    ...[
      '2030-01-31T24:00:00Z',
      '2030-01-31T09:60Z',
      '2030-01-31T09:00:60Z',
      '2030-01-31T09Z',
      '2030-01-31T',
      '2030-01-31Z',
    ],
    ...['2030-01-31T09:00:00 02:00', '2030-01-31T09:00+2:00', '2030-01-31T09:00+24:00', '2030-01-31T09:00+01:60'],
    ...[
      ' 2030-01-31',
      '2030-01-31 ',
      '2030-01-31\n',
      '2030-01-31T09:00:00.Z',
      '2030-01-31t09:00z',
      '2030-1-31',
      '٢٠٣٠-01-31',
    ],
  ]
  for (const text of texts) assert.equal(parseTime(text), undefined, text)
})
