// Workers whose code says something else of a queue than what is stored. The last process to define a queue decides; the others go on
// by their own code until they are deployed anew.

import { entriesIn } from '../../kv/entries.ts'
import { isDigestOf } from '../../queue/stored-definitions.ts'
import { counted, fine, warning } from '../../store/findings.ts'
import type { DefinitionRecord, Finding } from '../../store/store.ts'
import { presencePrefix, readPresence, type WorkerInfo } from '../../worker/presence.ts'
import type { Patient } from './doctor.ts'

export async function differingDefinitions({ store }: Patient): Promise<Finding[]> {
  const workers = (await entriesIn(store, presencePrefix)).map(readPresence).filter((worker) => worker !== null)
  const defining = workers.filter(({ definitions }) => Object.keys(definitions).length > 0)
  if (defining.length === 0) return []
  const stored = new Map((await store.definitions(null)).map((record) => [record.queue, record]))
  const found = defining.flatMap((worker) => findingsOf(worker, stored))
  if (found.length > 0) return found
  return [fine('definitions-differ', `${counted(defining.length, 'worker')} with the definitions that are stored.`)]
}

function findingsOf(worker: WorkerInfo, stored: ReadonlyMap<string, DefinitionRecord>): Finding[] {
  return Object.entries(worker.definitions).flatMap(([queue, digest]) => {
    const record = stored.get(queue)
    if (record === undefined || record.version === 0 || isDigestOf(digest, record.definition)) return []
    const { name, host, pid } = worker
    return warning(
      'definitions-differ',
      `Worker ${name} (process ${pid} on ${host}) has another definition of queue ${queue} than version ${record.version}, which is stored.`,
      'Deploy the same code everywhere; the process that starts last defines the queue.',
      { worker: name, host, pid, queue, version: record.version },
    )
  })
}
