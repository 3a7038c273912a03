import type { GateInfo } from '../worker/gate/gates.ts'
import { type Answer, type Call, type Command, ownValue, UsageError } from './command.ts'
import { oneLine, type Terminal } from './terminal.ts'

export const gate: Command = {
  name: 'gate',
  operands: 'list | open <name> | close <name>',
  says: 'list, open or close gates; while a gate is closed, its workers do not claim',
  options: { reason: { value: 'text', says: 'close: why; gate list shows it' } },
  examples: ['holdfast gate list', "holdfast gate close bookshop-login --reason 'new password'"],

  async run(call) {
    const [verb = '', ...operands] = call.operands
    const action = ownValue(actions, verb)
    if (!action) throw new UsageError(`gate takes list, open or close; got "${verb}".`)
    if (operands.length !== action.operands) throw new UsageError(`Write: ${action.usage}`)
    if (verb !== 'close' && call.options.isSet('reason')) throw new UsageError('--reason is only for gate close.')
    return action.run({ ...call, operands })
  },
}

interface Action {
  readonly usage: string
  readonly operands: number
  run(call: Call): Promise<Answer>
}

const actions: Readonly<Record<string, Action>> = {
  list: { usage: 'holdfast gate list', operands: 0, run: list },
  open: { usage: 'holdfast gate open <name>', operands: 1, run: openGate },
  close: { usage: 'holdfast gate close <name> [--reason text]', operands: 1, run: closeGate },
}

async function list({ open, terminal }: Call): Promise<Answer> {
  const gates = await (await open()).gates()
  return { data: gates, text: gates.length === 0 ? 'No gate was ever closed.' : tableOf(gates, terminal) }
}

async function openGate({ open, operands: [name = ''] }: Call): Promise<Answer> {
  const found = (await open()).gate(name)
  const opened = await found.open()
  const state = await found.state()
  if (!opened && state.generation === 0) {
    return { data: { name, opened, ...state }, text: `Gate ${name} was never closed.`, isMissing: true }
  }
  return { data: { name, opened, ...state }, text: opened ? `Opened gate ${name}.` : `Gate ${name} is already open.` }
}

async function closeGate({ open, operands: [name = ''], options }: Call): Promise<Answer> {
  const found = (await open()).gate(name)
  const closed = await found.close(options.text('reason') ?? 'closed by hand', { by: 'holdfast gate' })
  const state = await found.state()
  const data = { name, closed, ...state }
  if (closed) return { data, text: `Closed gate ${name}${state.generation === 0 ? ' for the first time' : ''}.` }
  const why = state.open ? '' : `: ${oneLine(state.reason)}`
  return { data, text: `Gate ${name} is already closed${why}` }
}

function tableOf(gates: readonly GateInfo[], terminal: Terminal): string {
  const columns = [{ title: 'GATE' }, { title: 'STATE' }, { title: 'CLOSED' }, { title: 'BY' }, { title: 'REASON' }]
  const none = terminal.paint('dim', '·')
  return terminal.table(
    columns,
    gates.map((info) => {
      if (info.open) return [oneLine(info.name), 'open', none, none, none]
      const { name, reason, closedAt, by } = info
      const closed = terminal.paint('yellow', 'closed')
      return [oneLine(name), closed, terminal.distance(closedAt), by === null ? none : oneLine(by), oneLine(reason)]
    }),
  )
}
