// Requests whose values the database refuses: a value that does not fit its column or an index, a constraint, a trigger or a row
// security policy of an operator (`connection/data-error.ts`). The server has undone the whole call then, and would do so each
// time it is sent. So its requests are divided, in their order, until the one that causes the error is alone: about 2 log₂ n
// calls for one bad request of n. That one is refused. A crash between two halves leaves some requests carried out and some not,
// as a crash between two calls does.
//
// Settlements do the same under flush numbers that follow from the caller's token (`settle.ts`).

import { type HoldfastError, type Refused, refuse } from '../../errors.ts'
import { isDataError } from './connection/data-error.ts'
import { afterOthers } from './statement-policy.ts'

/** Sends the requests together. If their values are refused, finds out which. `what` and `facts` name one in its refusal. */
export async function orRefuseValues<R, A>(
  requests: readonly R[],
  send: (requests: readonly R[]) => Promise<readonly A[]>,
  what: (request: R) => string,
  factsOf: (request: R) => Refused['facts'] = () => ({}),
): Promise<(A | Refused)[]> {
  try {
    return [...(await send(requests))]
  } catch (error) {
    if (!isDataError(error)) throw error
    const [first] = requests
    if (requests.length === 1) return [refusedValues(what(first as R), error, factsOf(first as R))]
  }
  const middle = requests.length >> 1
  const answers = await orRefuseValues(requests.slice(0, middle), send, what, factsOf)
  answers.push(...(await afterOthers(answers, orRefuseValues(requests.slice(middle), send, what, factsOf))))
  return answers
}

export function refusedValues(what: string, error: HoldfastError, facts: Refused['facts'] = {}): Refused {
  const { message } = error.cause as Error
  const sentence = `PostgreSQL refuses ${what}: ${message}. Nothing was carried out.`
  return refuse('INVALID_OPTION', sentence, { ...facts, code: error.facts['code'] })
}
