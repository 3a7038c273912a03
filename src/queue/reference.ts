// How a caller names a queue: by its name, its definition, or the queue itself. And the types of payload and result that
// follow from it: a name alone says nothing, so both are `unknown`.

import { HoldfastError } from '../errors.ts'
import { checkQueueName } from '../job/names.ts'
import { show } from '../runtime/duration.ts'
import { type AnyDefinition, defineQueue, isDefinition, type QueueDefinition } from './definition.ts'

/** A queue as `holdfast.queue()` returns it; also one of another copy of this package. */
// biome-ignore lint/suspicious/noExplicitAny: matches a queue of any types
export interface QueueHandle<In = any, Out = any, Result = any, ResultOut = any> {
  readonly definition: QueueDefinition<In, Out, Result, ResultOut>
}

/** A queue, wherever a call names one: its name, its definition, or what `holdfast.queue()` returned. */
// biome-ignore lint/suspicious/noExplicitAny: matches a queue of any types
export type QueueReference<In = any, Out = any, Result = any, ResultOut = any> =
  | string
  | QueueDefinition<In, Out, Result, ResultOut>
  | QueueHandle<In, Out, Result, ResultOut>

type DefinitionOf<Q> =
  Q extends QueueHandle<infer In, infer Out, infer Result, infer ResultOut>
    ? QueueDefinition<In, Out, Result, ResultOut>
    : Q

/** The type that an enqueue in this queue takes. */
export type PayloadOf<Q> =
  DefinitionOf<Q> extends QueueDefinition<infer In, infer _Out, infer _Result, infer _ResultOut> ? In : unknown

/** The type that a handler of this queue gets. */
export type OutOf<Q> =
  DefinitionOf<Q> extends QueueDefinition<infer _In, infer Out, infer _Result, infer _ResultOut> ? Out : unknown

/** The type that a handler of this queue returns. */
export type ResultOf<Q> =
  DefinitionOf<Q> extends QueueDefinition<infer _In, infer _Out, infer Result, infer _ResultOut> ? Result : unknown

/** The type of a result of this queue as it is read. */
export type ResultOutOf<Q> =
  DefinitionOf<Q> extends QueueDefinition<infer _In, infer _Out, infer _Result, infer ResultOut> ? ResultOut : unknown

/** `Known` of a queue whose types are known; `Stated` if it is given by its name, for which the caller states the type. */
export type Stated<Q, Stated, Known> = [QueueReference] extends [Q] ? Stated : Q extends string ? Stated : Known

/** A payload that may be left out only where the queue accepts none. */
export type PayloadField<Payload> = undefined extends Payload
  ? { readonly payload?: Payload }
  : { readonly payload: Payload }

/** Returns a definition unchanged; makes one from a name. */
export function toDefinition(queue: QueueReference): AnyDefinition {
  return definitionIn(queue) ?? defineQueue(checkReference(queue))
}

export function toQueueName(queue: QueueReference): string {
  return definitionIn(queue)?.name ?? checkQueueName(checkReference(queue))
}

function definitionIn(queue: unknown): AnyDefinition | null {
  if (isDefinition(queue)) return queue
  if (typeof queue !== 'object' || queue === null || !('definition' in queue)) return null
  return isDefinition(queue.definition) ? queue.definition : null
}

function checkReference(queue: unknown): string {
  if (typeof queue === 'string') return queue
  throw new HoldfastError(
    'INVALID_NAME',
    `A queue is named by its name, by what defineQueue returned, or by holdfast.queue(…); got ${show(queue)}.`,
    { name: queue },
  )
}
