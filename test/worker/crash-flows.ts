// The flows whose workers are killed. `note` is what the outside world sees: it is called once for each attempt that reaches it.
import { defineFlow, defineQueue, defineWebhooks, type Flow, type Step } from '../../src/index.ts'

export type Note = (what: string, key: string) => void

export const webhooks = defineWebhooks({ secret: 'whsec_dGhpcyBpcyBhIHNlY3JldCBvZiAyNCBieXRlcw==' })
export const scoring = defineQueue<number, number>('scoring')

export type Task = 'steps' | 'once' | 'poison' | 'call' | 'signals' | 'end' | 'hold'

/** `hold`: what a step of that task waits for in its first process. */
export function crashFlow(note: Note, hold: () => Promise<void>) {
  const counted = (flow: Flow, name: string) =>
    flow.step(name, ({ key, sql, effects }: Step) => {
      note(name, key)
      sql`insert into effect (job, worker) values (${flow.id}, ${name})`
      effects.enqueue('followUps', name)
      return `${name} of ${flow.id}`
    })
  const tasks: Readonly<Record<Task, (flow: Flow) => Promise<unknown>>> = {
    steps: async (flow) => [await counted(flow, 'a'), await counted(flow, 'b')],
    once: (flow) =>
      flow.step('charge', ({ key }) => note('charge', key), { once: true }).catch(({ code }) => code as string),
    poison: (flow) => flow.step('poison', () => process.kill(process.pid, 'SIGKILL')),
    call: (flow) => flow.call('score', scoring, 21),
    signals: async (flow) => [await flow.signal('item'), await flow.signal('item')],
    end: async (flow) => flow.done('ended', { webhook: { url: 'https://example.org', event: 'ended' } }),
    hold: async (flow) => {
      await counted(flow, 'a')
      return flow.step('b', async ({ key, sql }) => {
        note('b', key)
        await hold()
        sql`insert into effect (job, worker) values (${flow.id}, 'b')`
        return 'b'
      })
    },
  }
  return defineFlow<Task>('crashes', { attempts: 3, webhooks }, (flow, task) => tasks[task](flow))
}
