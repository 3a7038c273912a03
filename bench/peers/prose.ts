// The text of the page beside its figures.

import type { FigureName } from './figures.ts'

const figures: Readonly<Record<FigureName, string>> = {
  single: `Holdfast puts calls that are made at the same moment into one statement and one commit, and still answers each call separately.
The peers on PostgreSQL commit once a call. pg-boss with \`notify\`, and Graphile Worker always, also notify inside that commit. For
such commits PostgreSQL makes all of them wait for each other. A single caller gains nothing from grouping: it waits for one
commit in every queue. The raw queue groups calls in the same way, with one bare insert for all that wait. With 32 callers no more
than 32 jobs can share a commit, so its figure is the most that is possible.`,
  bulk: `The first half of the drain below. The raw queues are hand-written statements that check, encode and count nothing.`,
  drain: `One worker process at its best settings, from its start until its last job was handled. pg-boss keeps finished jobs and Graphile
Worker deletes them, so Holdfast takes part both ways. The raw queues show what the same server gives to hand-written SQL that
claims and settles by five hundred and does nothing else: it parses no payload, counts nothing, keeps nothing, and watches over no
handler. The whole drain is done twice, and the second time is measured.`,
  cycle: `A producer that enqueues five hundred a call and stays at most five thousand jobs ahead of a worker in the same process.`,
  'pick-up': `A job every 60 to 120 ms, after 5,000 without a pause. One process enqueues it, and another process that has nothing else to do
handles it. pg-boss listens for notifications here; by default it polls every two seconds. The raw line is the least time that a
server takes to pass a row from one process to another: no lease is held, nothing is counted, and a worker that dies loses its
jobs.`,
  backlog: `Jobs handled a second in the middle of a backlog, compared with the same with fifty thousand jobs. Workers are stopped half-way
here. In our runs \`stop()\` of Graphile Worker then failed and left the jobs of its local queue locked, for the four hours that a
lock lasts.`,
  snapshot: `A backup, a long report or a forgotten session holds a snapshot open while the queue works at full speed. Rows that were deleted
since then cannot be removed, and a query that has to read over them becomes slower with every job. On SQLite the snapshot is a
reader, which keeps the log from being moved into the file. Redis has no snapshots of this kind.`,
  recovery: `A worker is killed while it runs a job; another worker is already running. By default Holdfast and BullMQ hold a job for 30
seconds and renew it. pg-boss lets a job run for 15 minutes by default, Graphile Worker for four hours, which cannot be changed.
Best settings: a lease of 5 s (Holdfast, BullMQ with a check every second), a heartbeat of 10 s, its least, checked every second
(pg-boss). Shorter leases cost more renewals and are lost more easily.`,
  processor: `While draining, all processes of the server together. The rest of the two cores' time is spent waiting.`,
  costs: `Memory is the most that the worker process had. The log is PostgreSQL's WAL, the append-only file of Redis, and on SQLite
everything that is written, the file itself included. Stored is what tables and indexes take before any vacuum; on SQLite pages in
use, on Redis memory of the server. Drained means that all jobs are done: some queues keep them, others delete them and use the
space again later.`,
}

export const prose = {
  figures,
  opening: `Holdfast compared with pg-boss, Graphile Worker and BullMQ: the same machine, the same servers, the same payload of about a
hundred bytes, jobs that do nothing, each queue at the best settings that its documentation allows.

- Contenders take turns round by round. Each runs in a process of its own on an empty store. It works for a while before anything
  is measured, so that its code is compiled.
- After each run the contents of the store are checked. A run in which a job was not handled exactly once, or is still stored,
  gives no figure.
- [The program](../bench/peers) that measures also writes this page, from [the results](../bench/results) of every round.`,
  aims: `The aims of Holdfast on a machine with two cores, as ratios within rounds of one run. Of several peers the best one counts. Of
BullMQ the faster setting counts, which may lose a second of answered jobs; the setting that is as durable as Holdfast is listed
beside it.`,
  missedAims: `Why an aim was missed, or only just met:

- **Single enqueue.** Of 32 callers no more than 32 jobs share a commit, and each commit waits for the disk. BullMQ with a sync
  every second answers before anything is on disk. Compared with the BullMQ that is as durable, both of our stores take more than
  twice as many. Twice what the fast BullMQ takes is more than the raw queue above takes on PostgreSQL, which only inserts bare
  rows for all waiting callers. On SQLite, 32 callers have 0.40 ms at that rate. We need 0.58 ms (a probe of the disk, and times
  taken in the store):
  - 0.20 for the commit alone, of which 0.11 are the disk's;
  - 0.12 to insert;
  - 0.21 until the answer arrived and the next 32 jobs were prepared in the other thread;
  - 0.04 to answer and to move the log into the file.

  Sending half of the callers ahead gained nothing on SQLite and lost a seventh on PostgreSQL.
- **Idle pick-up.** The work itself is short. The time is lost because everything is cold after 60 to 120 ms without work: a
  \`select 1\` then takes 0.38 ms instead of 0.16, and the bare insert with its notification 1.1 instead of 0.5. Each function of
  ours then takes 4 µs, and each table that a statement reads or writes 20 to 50, whatever it does there. So a single job is
  enqueued by a statement of its own, and claimed by another, over the connection that received the notification. The aim is
  within the spread. 2.67 ms remain, by a probe of 450 jobs:
  - 0.19 until the job is sent;
  - 1.31 until the other process is notified (0.44 of them the disk's);
  - 0.21 in that process until the claim is sent;
  - 0.81 for the claim (0.3 for a claim that does nothing);
  - 0.13 until the handler runs.
- **Drain by a worker.** The aim is within the spread. 18 rounds on another machine, with a larger spread (0.63 – 1.12), gave 0.83
  at the median. A worker needs 4.8 µs of the client's time a job and 5.3 of the server's; two cores have 13 at that rate.
  Starting half of the claimed jobs while the next claim is under way changed nothing that could be measured there.
- **Drain by hand.** Two loops that claim and settle by five hundred wait for each other: settlements of one process are sent one
  after the other, those of raw SQL at the same time. (With two under way, a probe: 5 to 6 % more.) The rest is our own time,
  about 3.5 µs a job; raw SQL parses, checks and answers nothing.`,
  settings: `These settings are for throughput. The section on recovery lists its own.`,
  limits: `- **Real jobs do something.** If handlers take milliseconds, all of these queues are fast enough. What remains is enqueue,
  pick-up, recovery, and what a job costs.
- **One machine, two cores, client and server on them.** On a server of its own PostgreSQL has more capacity, every round trip
  takes longer, and a queue that sends fewer statements gains. These figures say nothing about many machines or hundreds of
  workers. Claims of one Holdfast queue and priority take turns. So many processes that each claim one job at a time are its worst
  case; peers with \`skip locked\` do better there.
- **Short runs.** Minutes, not days: they say nothing about vacuum, fragmentation or retention over time.
- **Priorities, dedup, limits, retries and schedules** are left out, because no two queues mean the same by them.
- **We know our own queue best.** The settings of the others are the best that we found; if you know better ones, the files in
  \`bench/peers\` are short.
- **Not here:** BullMQ on PostgreSQL, DBOS, River, Oban. The figure for River's recovery, an hour, is from its documentation.`,
  rerun: `\`\`\`sh
npm run bench -- peers                              # everything: more than half an hour
npm run bench -- peers --quick                      # a few minutes, results not kept
npm run bench -- peers --only drain,single          # some of it
npm run bench -- peers --contenders postgres,graphile
npm run bench -- peers --page                       # this page again, from the results
\`\`\`

The first run installs the peers into \`bench/peers\`. Redis is the machine's own, or is fetched from Debian's packages and unpacked
there. If neither is available, BullMQ is left out.`,
} as const

/** Why a peer is ahead, by figure and measure. */
export const whyAhead: Readonly<Record<string, string>> = {
  'backlog ratio': 'Redis takes jobs off the end of a list in memory, however long it is.',
  'costs enqueue clientUs':
    'pg-boss sends its jobs to the server as one JSON value, and the server does the rest, as the next column shows; Holdfast checks and encodes each job in the client.',
  'pick-up p50':
    'Redis passes a job to a blocked reader in one step, and its log is synced later or in one small write; Holdfast commits to disk, wakes the other process, and claims.',
  'pick-up p99': 'The same reason.',
  'costs drain rss':
    'A worker of a thousand jobs at a time, as it is set here, holds more of them in memory than one that takes five hundred.',
  'costs drain logBytes':
    'Nothing is kept: a finished job is only deleted. Holdfast also writes counts and the record of each call.',
  'costs storage kept': 'Redis frees memory at once; a table keeps the space of deleted rows for later jobs.',
}
