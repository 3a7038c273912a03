// Workers whose code defines a queue differently from the stored definition. The last process to define a queue wins. The others
// use the definition in their own code until they are deployed again.

import { isDigestOf } from '../../queue/stored-definitions.ts'
import { counted, fine, warning } from '../../store/findings.ts'
import type { DefinitionRecord, Finding } from '../../store/store.ts'
import { readWorkers, type WorkerInfo } from '../../worker/presence.ts'
import type { Patient } from './doctor.ts'

export async function differingDefinitions({ store }: Patient): Promise<Finding[]> {
  const workers = await readWorkers(store)
  const defining = workers.filter(({ definitions }) => Object.keys(definitions).length > 0)
  if (defining.length === 0) return []
  const stored = new Map((await store.definitions(null)).map((record) => [record.queue, record]))
  const found = defining.flatMap((worker) => findingsOf(worker, stored))
  if (found.length > 0) return found
  return [fine('definitions-differ', `${counted(defining.length, 'worker')} with the stored definitions.`)]
}

function findingsOf(worker: WorkerInfo, stored: ReadonlyMap<string, DefinitionRecord>): Finding[] {
  return Object.entries(worker.definitions).flatMap(([queue, digest]) => {
    const record = stored.get(queue)
    if (record === undefined || record.version === 0 || isDigestOf(digest, record.definition)) return []
    const { name, host, pid } = worker
    return warning(
      'definitions-differ',
      `Worker ${name} (process ${pid} on ${host}) defines queue ${queue} differently from the stored version ${record.version}.`,
      'Deploy the same code everywhere; the process that starts last defines the queue.',
      { worker: name, host, pid, queue, version: record.version },
    )
  })
}
