// Waits for a gate, or watches it.
//   gate-waiter.ts <url> wait    waits until it is open, reports that, closes it by its pass and reports whether that worked
//   gate-waiter.ts <url> watch   watches it, reports whether it is open, and has nothing else to do
import { open } from '../../../src/index.ts'
import { say } from '../../sqlite/programs/conversation.ts'

const [url = '', what = ''] = process.argv.slice(2)
const holdfast = await open(url)
const gate = holdfast.gate('login', { poll: '50ms' })

if (what === 'watch') {
  await gate.watch()
  say({ isOpen: gate.isOpen })
} else {
  await gate.watch()
  say({ isOpen: gate.isOpen })
  const pass = await gate.pass()
  say({ isOpen: gate.isOpen, closed: await pass.close('expired again', { by: 'waiter' }) })
  await holdfast.close()
}
