import assert from 'node:assert/strict'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { isHoldfastError } from '../../src/errors.ts'
import { type Holdfast, open } from '../../src/index.ts'
import { Program } from '../sqlite/process.ts'
import { testDatabase } from '../support/postgres.ts'
import { putReserved } from '../support/reserved-entries.ts'
import { scratchDirectory } from '../support/scratch.ts'

interface Place extends AsyncDisposable {
  readonly url: string
}

const places: Readonly<Record<string, () => Promise<Place>>> = {
  'sqlite file': async () => {
    const scratch = await scratchDirectory()
    const url = `sqlite:${join(scratch.path, 'jobs.db')}`
    return { url, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
  },
  postgres: testDatabase,
}

const waiter = (url: string, what: string) => Program.start('../../worker/programs/gate-waiter', url, what)

for (const [store, place] of Object.entries(places)) {
  describe(`a gate that two clients share through ${store}`, () => {
    test('is open until it is closed, and its state says by which name, when and why', async () => {
      await using world = await setup(place)
      const [ours, theirs] = world.gates
      assert.deepEqual(await ours.state(), { open: true, generation: 0 })
      const before = Date.now()
      assert.equal(await ours.close('session expired', { by: 'w1' }), true)
      assert.equal(await ours.passNow().close('again'), false, 'a pass of a closed gate closes nothing')
      const state = await theirs.state()
      assert.ok(!state.open && state.closedAt.getTime() >= before && state.closedAt.getTime() <= Date.now())
      const { closedAt, ...rest } = state
      assert.deepEqual(rest, { open: false, reason: 'session expired', by: 'w1', generation: 0 })
      assert.equal(await theirs.open(), true)
      const opened = await ours.state()
      assert.ok(opened.open && opened.generation > 0)
    })

    test('keeps its state if it is closed while closed, or opened while open', async () => {
      await using world = await setup(place)
      const [ours, theirs] = world.gates
      assert.equal(await ours.open(), false)
      assert.equal(await ours.close('first'), true)
      assert.equal(await theirs.close('second'), false)
      const state = await theirs.state()
      assert.equal(!state.open && state.reason, 'first')
      assert.equal(await ours.open(), true)
      const generation = (await ours.state()).generation
      assert.equal(await theirs.open(), false)
      assert.equal((await ours.state()).generation, generation)
    })

    test('is closed by exactly one of all passes of the same generation', async () => {
      await using world = await setup(place)
      const [ours, theirs] = world.gates
      for (let round = 0; round < 3; round++) {
        const entered = await Promise.all([ours, theirs, ours, theirs].flatMap((gate) => [gate.pass(), gate.pass()]))
        assert.equal(new Set(entered.map(({ generation }) => generation)).size, 1)
        const closed = await Promise.all(entered.map((pass, n) => pass.close(`late job ${n}`)))
        const winner = closed.indexOf(true)
        assert.equal(closed.filter((won) => won).length, 1)
        const state = await ours.state()
        assert.equal(!state.open && state.reason, `late job ${winner}`)
        const opened = await Promise.all([ours, theirs].map((gate) => gate.open()))
        assert.equal(opened.filter((won) => won).length, 1)
        await Promise.all([ours, theirs].map((gate) => gate.watch()))
      }
    })

    test('is not closed by a pass from before it was opened again', async () => {
      await using world = await setup(place)
      const [ours, theirs] = world.gates
      const old = await ours.pass()
      const mate = await theirs.pass()
      assert.equal(await mate.close('expired'), true)
      await theirs.open()
      assert.equal(await old.close('expired'), false)
      assert.equal(ours.isOpen, true, 'it is known at once to be open')
      const fresh = await ours.pass()
      assert.notEqual(fresh.generation, old.generation)
      assert.equal(await fresh.close('expired again'), true)
    })

    test('lets a call in another client go on when it is opened', async () => {
      await using world = await setup(place)
      const [ours, theirs] = world.gates
      await ours.close('expired')
      const entering = theirs.pass()
      await theirs.watch()
      assert.equal(theirs.isOpen, false)
      await ours.open()
      const pass = await entering
      assert.equal(pass.generation, ours.passNow().generation)
    })

    test('rejects calls with CLOSED that wait when their client is closed, and calls after that', async () => {
      await using world = await setup(place)
      const [ours] = world.gates
      await ours.close('expired')
      const refused = (promise: Promise<unknown>) =>
        assert.rejects(promise, (error) => isHoldfastError(error, 'CLOSED'))
      const waiting = [refused(ours.whenOpen()), refused(ours.pass())]
      await ours.watch()
      const arriving = refused(ours.whenOpen())
      await world.clients[0]?.close()
      await Promise.all([...waiting, arriving])
      await refused(ours.whenOpen())
      await refused(ours.close('again'))
    })

    test('is listed by gates() once it was closed, by name, and nothing else is', async () => {
      await using world = await setup(place)
      const [client] = world.clients as [Holdfast]
      await putReserved(client, 'holdfast.gates', 'no gate')
      await client.gate('b').close('expired', { by: 'w1' })
      await client.gate('a').close('expired')
      await client.gate('a').open()
      await client.gate('never').state()
      const listed = (await client.gates()).map(({ name, open: isOpen }) => [name, isOpen])
      assert.deepEqual(listed, [
        ['a', true],
        ['b', false],
      ])
    })

    test('can be waited for by a read-only client, which cannot change it', async () => {
      await using world = await setup(place)
      await using reader = await open(world.url, { readOnly: true })
      const gate = reader.gate('login', { poll: '50ms' })
      await assert.rejects(gate.close('no'), (error) => isHoldfastError(error, 'UNSUPPORTED'))
      await world.gates[0].close('expired')
      const waiting = gate.whenOpen()
      await world.gates[0].open()
      await waiting
    })

    test('works across processes, and stays closed after the process that closed it has ended', async () => {
      await using world = await setup(place)
      const [gate] = world.gates
      await gate.close('session expired')
      await using program = waiter(world.url, 'wait')
      assert.deepEqual(await program.hear(), { isOpen: false })
      await gate.open()
      assert.deepEqual(await program.hear(), { isOpen: true, closed: true })
      assert.equal(await program.ended, 0)
      const state = await gate.state()
      assert.deepEqual(!state.open && [state.reason, state.by], ['expired again', 'waiter'])
    })
  })
}

test('waiting for a gate keeps the process alive; watching it does not', async () => {
  await using world = await setup(places['sqlite file'] as () => Promise<Place>)
  await using watching = waiter(world.url, 'watch')
  assert.deepEqual(await watching.hear(), { isOpen: true })
  assert.equal(await watching.ended, 0)
})

test('a client has one gate object for each name, and refuses invalid names and options', async () => {
  await using world = await setup(places['sqlite file'] as () => Promise<Place>)
  const [client] = world.clients as [Holdfast]
  assert.equal(client.gate('login'), world.gates[0])
  for (const name of ['', 'a b', 'é', 'x'.repeat(256), 7 as unknown as string]) {
    assert.throws(
      () => client.gate(name),
      (error) => isHoldfastError(error, 'INVALID_NAME'),
    )
  }
  await client.gate('x'.repeat(255)).close('the longest name fits')
  const wrong = { pol: '1s' } as { poll?: '1s' }
  for (const options of [wrong, { poll: 0 }, { poll: '2d' as const }]) {
    assert.throws(
      () => client.gate('other', options),
      (error) => isHoldfastError(error, 'INVALID_OPTION'),
    )
  }
})

test('any text is a reason, and is stored in a form that every store accepts', async () => {
  await using world = await setup(places['sqlite file'] as () => Promise<Place>)
  const [gate] = world.gates
  const kept = async (reason: string) => {
    await gate.close(reason)
    const state = await gate.state()
    await gate.open()
    return state.open ? undefined : state.reason
  }
  assert.equal(await kept(''), 'no reason given')
  assert.equal(await kept('a\0b'), 'a\u2400b')
  assert.ok(((await kept('x'.repeat(1_000_000))) ?? '').length <= 8_192)
  const noText = 7 as unknown as string
  await assert.rejects(gate.close(noText), (error) => isHoldfastError(error, 'INVALID_OPTION'))
  await assert.rejects(gate.passNow().close(noText), (error) => isHoldfastError(error, 'INVALID_OPTION'))
})

async function setup(place: () => Promise<Place>) {
  const { url, [Symbol.asyncDispose]: leave } = await place()
  const clients = [await open(url), await open(url)]
  const [ours, theirs] = clients as [Holdfast, Holdfast]
  const gates = [ours.gate('login', { poll: '50ms' }), theirs.gate('login', { poll: '50ms' })] as const
  const end = async () => {
    await Promise.all(clients.map((client) => client.close()))
    await leave()
  }
  return { url, clients, gates, [Symbol.asyncDispose]: end }
}
