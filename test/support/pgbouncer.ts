// PgBouncer in transaction mode, in front of a server. Every transaction may run on another of `poolSize` connections, and
// nothing is reset in between. So code that relies on its session fails. HOLDFAST_TEST_PGBOUNCER names another binary than the
// one on the path.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { unprivilegedAccount } from './postgres-home.ts'
import { freePort } from './postgres-server.ts'
import { scratchDirectory } from './scratch.ts'
import { runOk } from './shell.ts'

export interface Pooler extends AsyncDisposable {
  readonly url: string
}

export interface PoolerOptions {
  readonly poolSize?: number
  /** How many it keeps for each connection. Versions before 1.21 support only 0. */
  readonly preparedStatements?: number
}

const program = process.env['HOLDFAST_TEST_PGBOUNCER'] ?? 'pgbouncer'
const readyMaxMs = 10_000

export async function startPooler(
  serverUrl: string,
  { poolSize = 2, preparedStatements = 0 }: PoolerOptions = {},
): Promise<Pooler> {
  const target = new URL(serverUrl)
  const port = await freePort()
  const scratch = await scratchDirectory()
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'any',
    pool_mode: 'transaction',
    default_pool_size: poolSize,
    max_client_conn: 500,
    server_reset_query: '',
    server_login_retry: 1, // seconds until it tries an unreachable server again
    logfile: join(scratch.path, 'pooler.log'),
    ...(preparedStatements > 0 && { max_prepared_statements: preparedStatements }),
  }
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}`)
  const user = target.username || 'postgres'
  const databases = `* = host=${target.hostname} port=${target.port} user=${user}`
  const file = join(scratch.path, 'pooler.ini')
  writeFileSync(file, `[databases]\n${databases}\n[pgbouncer]\n${lines.join('\n')}\n`)
  const account = unprivilegedAccount()
  if (account.uid !== undefined) chownSync(scratch.path, account.uid, account.gid as number)
  const child = spawn(program, ['--quiet', file], { ...account, cwd: '/', stdio: 'ignore' })
  const url = new URL(serverUrl)
  url.port = String(port)
  await ready(url.href, child)
  return {
    url: url.href,
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
      await scratch[Symbol.asyncDispose]()
    },
  }
}

/** Since 1.21 it can keep prepared statements itself. */
export async function poolerVersion(): Promise<readonly [number, number]> {
  const { stdout } = await runOk(program, ['--version'])
  const [, major, minor] = /(\d+)\.(\d+)/.exec(stdout) ?? []
  return [Number(major), Number(minor)]
}

async function ready(url: string, child: ChildProcess): Promise<void> {
  const failed = once(child, 'error').then(([error]) => Promise.reject(error))
  for (const deadline = Date.now() + readyMaxMs; ; ) {
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => undefined)
    const answered = client.connect().then(
      () => true,
      () => false,
    )
    if (await Promise.race([answered, failed])) return client.end()
    if (Date.now() > deadline || child.exitCode !== null) throw new Error('PgBouncer did not start')
    await delay(50)
  }
}
