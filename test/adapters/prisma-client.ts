// Prisma's own client for a schema without models, as `prisma generate` writes it. The generator itself needs an engine that must
// be downloaded. Runtime, query compiler and driver adapter are the real ones.
import { PrismaPg } from '@prisma/adapter-pg'
import { type GetPrismaClientConfig, getPrismaClient } from '@prisma/client/runtime/client'

export interface PrismaTx {
  $queryRawUnsafe(text: string, ...values: unknown[]): Promise<unknown>
  $executeRawUnsafe(text: string, ...values: unknown[]): Promise<number>
  $transaction(work: (tx: PrismaTx) => Promise<void>): Promise<void>
}

export interface PrismaClient extends PrismaTx {
  $connect(): Promise<void>
  $disconnect(): Promise<void>
}

/** Node has it; its types are in those of a browser. */
const { WebAssembly } = globalThis as unknown as { WebAssembly: { Module: new (bytes: Uint8Array) => unknown } }

/** Its files have no types. */
const compiler = '@prisma/client/runtime/query_compiler_small_bg.postgresql'

const config: GetPrismaClientConfig = {
  previewFeatures: [],
  clientVersion: '7',
  engineVersion: 'none',
  activeProvider: 'postgresql',
  inlineSchema: 'datasource db {\n  provider = "postgresql"\n}\n',
  runtimeDataModel: { models: {}, enums: {}, types: {} },
  parameterizationSchema: { strings: [], graph: 'AAAA' },
  compilerWasm: {
    getRuntime: () => import(`${compiler}.mjs`),
    getQueryCompilerWasmModule: async () => {
      const { wasm } = await import(`${compiler}.wasm-base64.mjs`)
      return new WebAssembly.Module(Buffer.from(wasm, 'base64'))
    },
    importName: './query_compiler_small_bg.js',
  },
}

export function prismaClient(url: string): PrismaClient {
  const Client = getPrismaClient(config) as unknown as new (options: { adapter: PrismaPg }) => PrismaClient
  return new Client({ adapter: new PrismaPg({ connectionString: url }) })
}
