// Checks of the file: by the operating system, and on a connection of its own.

import { existsSync, statfsSync, statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { span } from '../../../runtime/duration.ts'
import { type Check, counted, fine, runChecks, warning, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { isBusy } from '../connection/database.ts'
import { type FileToOpen, openWith } from '../connection/driver.ts'

export function examineFile(file: FileToOpen): Promise<Finding[]> {
  return runChecks(fileChecks, file)
}

const fileChecks: Readonly<Record<string, Check<FileToOpen>>> = {
  'network-file-system': ({ path }) => fileSystem(statfsSync(path).type),
  'disk-space': diskSpace,
  'write-lock': writeLock,
  'log-size': logSize,
}

/** Types of file systems whose locks or shared memory do not meet the needs of SQLite. */
const networkFileSystems: Readonly<Record<number, string>> = {
  26985: 'NFS',
  20859: 'SMB',
  4283649346: 'CIFS',
  4266872130: 'SMB',
  16914839: '9p',
  12805120: 'Ceph',
  1397113167: 'AFS',
  1702057286: 'FUSE',
}

export function fileSystem(type: number): Finding[] {
  const name = networkFileSystems[type]
  if (name === undefined) return [fine('network-file-system', 'The file is on a disk of this machine.', { type })]
  return [
    warning(
      'network-file-system',
      `The file is on ${name}: locks between machines do not hold there, and the database may be damaged.`,
      'Move it to a disk of this machine, and have all its processes run here.',
      { type, name },
    ),
  ]
}

const mib = 2 ** 20
const spaceMinBytes = 100 * mib
const spaceLowBytes = 1024 * mib

function diskSpace({ path }: FileToOpen): Finding[] {
  const { bavail, bsize } = statfsSync(path)
  return spaceLeft(bavail * bsize, statSync(path).size)
}

export function spaceLeft(bytes: number, fileBytes: number): Finding[] {
  const facts = { bytes, fileBytes }
  const left = `${counted(Math.round(bytes / mib), 'MiB', 'MiB')} are left on the disk`
  const fix = 'Make room: a disk that is full refuses every enqueue and settlement.'
  if (bytes < spaceMinBytes) return [wrong('disk-space', `Only ${left}.`, fix, facts)]
  if (bytes < Math.min(spaceLowBytes, fileBytes)) return [warning('disk-space', `Only ${left}.`, fix, facts)]
  return [fine('disk-space', `${left}.`, facts)]
}

const lockMaxMs = 2_000
const tryEveryMs = 50

/** Whether the file can be written. A connection that keeps the write lock longer than this blocks all others. */
async function writeLock(file: FileToOpen): Promise<Finding[]> {
  const db = openWith(file)
  try {
    for (const deadline = performance.now() + lockMaxMs; performance.now() < deadline; await sleep(tryEveryMs)) {
      if (canBegin(() => db.exec('begin immediate; rollback')))
        return [fine('write-lock', 'The file can be written to.')]
    }
    return [
      wrong(
        'write-lock',
        `Another connection has kept the file locked for writing for more than ${span(lockMaxMs)}: no process can enqueue, claim or settle.`,
        'Find the process with a write transaction left open (lsof, fuser), and end it or its transaction.',
      ),
    ]
  } finally {
    db.close()
  }
}

function canBegin(begin: () => void): boolean {
  try {
    begin()
    return true
  } catch (error) {
    if (!isBusy(error)) throw error
    return false
  }
}

const logMaxBytes = 32 * mib

/** A log grows while a read transaction is open: pages that were written after its start cannot be checkpointed. */
function logSize(file: FileToOpen): Finding[] {
  const log = `${file.path}-wal`
  const bytes = existsSync(log) ? statSync(log).size : 0
  const pages = bytes > logMaxBytes ? pagesKept(file) : 0
  const facts = { bytes, pagesKept: pages }
  if (pages * pageBytes <= logMaxBytes) return [fine('log-size', 'The log is moved into the file as it grows.', facts)]
  return [
    warning(
      'log-size',
      `${counted(Math.round(bytes / mib), 'MiB', 'MiB')} of log cannot be moved into the file: another connection has kept a read transaction open for long.`,
      'Find the process that reads (a report, a shell, a backup), and end its transaction.',
      facts,
    ),
  ]
}

const pageBytes = 4096

/** How many pages stay in the log because an open read transaction needs the older ones. */
function pagesKept(file: FileToOpen): number {
  const db = openWith(file)
  try {
    const { log, checkpointed } = db.prepare('pragma wal_checkpoint(passive)').get() as Record<
      'log' | 'checkpointed',
      number
    >
    return log - checkpointed
  } finally {
    db.close()
  }
}
