// Prisma accepts `$1` unchanged, and takes each value as a separate argument.

import { type CallerTransaction, hasMethod, notItsTransaction } from './transaction.ts'

/** The `tx` of `prisma.$transaction(async (tx) => …)`. A `$transaction` of a list of queries has none to enqueue in. */
export interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: never[]): PromiseLike<unknown>
}

export function isPrisma(value: unknown): boolean {
  return hasMethod(value, '$queryRawUnsafe')
}

/** Makes the `tx` of an enqueue from a transaction of Prisma. */
export function fromPrisma(tx: PrismaTransaction): CallerTransaction {
  if (!isPrisma(tx) || hasMethod(tx, '$connect')) {
    throw notItsTransaction('fromPrisma', 'the tx of prisma.$transaction(async (tx) => …)', tx)
  }
  return {
    query: (text, values) => tx.$queryRawUnsafe(text, ...(values as never[])) as PromiseLike<readonly unknown[]>,
  }
}
