// Prisma takes `$1` as it stands, and each value as an argument of its own.

import { type CallerTransaction, hasMethod, notItsTransaction } from './transaction.ts'

/** As handed out by `prisma.$transaction(async (tx) => …)`; a list of queries is no transaction to enqueue in. */
export interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: never[]): PromiseLike<unknown>
}

export function isPrisma(value: unknown): boolean {
  return hasMethod(value, '$queryRawUnsafe')
}

/** Makes `tx` of an enqueue from Prisma's. */
export function fromPrisma(tx: PrismaTransaction): CallerTransaction {
  if (!isPrisma(tx) || hasMethod(tx, '$connect')) {
    throw notItsTransaction('fromPrisma', 'the tx of prisma.$transaction(async (tx) => …)', tx)
  }
  return {
    query: (text, values) => tx.$queryRawUnsafe(text, ...(values as never[])) as PromiseLike<readonly unknown[]>,
  }
}
