// What Deno and Bun lack is refused with a code and a way out. test/system/runtimes.test.ts runs the package in them.
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { hostOf } from '../../src/runtime/host.ts'
import { driverOf, openWith } from '../../src/store/sqlite/connection/driver.ts'
import { checkMaxMemory } from '../../src/worker/options.ts'

test('a runtime is known by its version', () => {
  assert.equal(hostOf(process.versions), 'Node.js')
  assert.equal(hostOf({ node: '26.3.0', deno: '2.9.6' }), 'Deno')
  assert.equal(hostOf({ node: '26.3.0', bun: '1.4.4' }), 'Bun')
})

test('a limit of memory is refused by runtimes that do not keep it', () => {
  assert.equal(checkMaxMemory(64, 'Node.js'), 64)
  for (const runtime of ['Deno', 'Bun'] as const)
    assert.throws(() => checkMaxMemory(64, runtime), { code: 'UNSUPPORTED', message: /leave maxMemoryMb out/ })
})

test('a runtime without node:sqlite is refused with the driver that works, which is still known', (t: TestContext) => {
  t.mock.method(process, 'getBuiltinModule', () => undefined)
  assert.throws(() => openWith({ driver: 'node:sqlite', path: ':memory:' }), {
    code: 'UNSUPPORTED',
    message: /has no node:sqlite.*driver: 'better-sqlite3'/,
  })
  assert.equal(driverOf({}), null)
})
