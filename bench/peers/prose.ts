// What the page says beside its figures.

import type { FigureName } from './figures.ts'

const figures: Readonly<Record<FigureName, string>> = {
  single: `Holdfast puts calls that meet in the same moment into one statement and one commit, and still answers each of them on its
own. The peers on PostgreSQL commit once a call; with \`notify\` pg-boss, and Graphile Worker always, also notify inside that
commit, for which PostgreSQL makes all commits wait for each other. One caller alone gains nothing from this: it waits for one
commit, whoever it asks. The raw queue is the same with nothing but one bare insert for all who wait: with 32 callers no more
than 32 jobs can share a commit, so that is what can be had.`,
  bulk: `The first half of the drain below. The raw queues are hand-written statements that check, encode and count nothing.`,
  drain: `One worker process at its best settings, from its start until its last job was handled. Like for like: pg-boss keeps what it
finished and Graphile Worker deletes it, so Holdfast takes part both ways. The raw queues show what the same server gives to
hand-written SQL that claims and settles by five hundred and does nothing else: no payload is parsed, nothing is counted,
nothing is kept, and no handler is watched over. All of it is done twice, and the second time is measured.`,
  cycle: `A producer that enqueues five hundred a call and stays at most five thousand ahead of a worker in the same process.`,
  'pick-up': `A job every 60 to 120 ms, after 5,000 without a pause, enqueued by one process and handled by another that has nothing
else to do. pg-boss listens for notifications here; by default it looks every two seconds. The raw line is the least that a
server takes to hand a row from one process to another: nobody holds a job there, nothing is counted, and a worker that dies takes
its jobs along.`,
  backlog: `Jobs handled a second in the middle of a backlog, beside the same with fifty thousand jobs. Workers are stopped half-way here:
\`stop()\` of Graphile Worker then failed in our runs and left what was in its local queue locked, for the four hours that a lock lasts.`,
  snapshot: `A backup, a long report or a forgotten session holds a snapshot open while the queue works at full speed. What was deleted since
cannot be removed, and whoever reads over it slows down with every job. On SQLite it is a reader, because of which the log cannot
be moved into the file. Redis has no such thing.`,
  recovery: `A worker is killed while it runs a job; another one is there already. By default Holdfast and BullMQ hold a job for 30 seconds and
renew it; pg-boss lets a job run for 15 minutes unless told otherwise, Graphile Worker for four hours, which cannot be changed.
Best settings: a lease of 5 s (Holdfast, BullMQ with a check every second), a heartbeat of 10 s, its least, watched every second
(pg-boss). Shorter leases cost more renewals and are lost more easily.`,
  processor: `While draining, all processes of the server together. What is left of two cores is waiting.`,
  costs: `Memory is the most that the worker process had. The log is PostgreSQL's WAL, the append-only file of Redis, and on SQLite all that is
written, the file itself included. Stored is what tables and indexes take before any vacuum, pages in use on SQLite, memory of
the server on Redis. Drained means that all jobs are done: kept by some, deleted by others, whose space is used again later.`,
}

export const prose = {
  figures,
  opening: `Holdfast beside pg-boss, Graphile Worker and BullMQ: the same machine, the same servers, the same payload of about a hundred bytes,
jobs that do nothing, each queue at the best settings that its documentation allows. Contenders take turns round by round, each in
a process of its own on an empty store, which has worked for a while before anything is measured, so that its code is compiled.
After each run the store is looked into: a run in which a job was not handled exactly once, or is still there, gives
no figure. This page is made from [the results](../bench/results), every round of
them, by [the program](../bench/peers) that took them.`,
  aims: `What Holdfast set out for on a machine with two cores, as ratios within rounds of one run. Of several peers the best one counts, and
of BullMQ the faster, which is the one that may lose a second of answered jobs; beside it stands the one that is as durable as we are.`,
  inTheWay: `What stands in the way where an aim is not met, or only just:

- **Single enqueue.** Of 32 callers no more than 32 jobs share a commit, and each commit waits for the disk. BullMQ with a sync every
  second answers before anything is on disk; beside the one that is as durable both of our stores take more than twice as many.
  Twice what the fast one takes is more than the raw queue above takes on PostgreSQL, which does nothing but insert bare rows for all
  who wait. On SQLite 32 callers have 0.40 ms at that rate; the commit alone takes 0.20, of which 0.11 are the disk's (a probe of the
  disk, and times taken in the store). The rest of our 0.58 ms: 0.12 to insert, 0.21 until the answer was heard and the next 32
  jobs were prepared in the other thread, 0.04 to answer and to move the log into the file. Sending half of the callers ahead gained
  nothing on SQLite and lost a seventh on PostgreSQL.
- **Idle pick-up.** It is not the work that takes so long, it is that everything is cold after 60 to 120 ms in which nothing happened: a
  \`select 1\` then takes 0.38 ms where it takes 0.16 otherwise, and the bare insert with its notification 1.1 instead of 0.5. Each
  function of ours takes 4 µs then, and each table that a statement looks into or writes to 20 to 50, whatever it does there.
  So a job that is alone goes in by a statement of its own, and is claimed by one, over the connection that has just told of it. The
  aim lies within the spread. What is left of 2.67 ms, by a probe of 450 jobs: 0.19 until the job is sent, 1.31 until the other process
  has heard of it (0.44 of them the disk's), 0.21 in it until the claim is sent, 0.81 for the claim (0.3 for one that does nothing),
  0.13 until the handler runs.
- **Drain by a worker.** The aim lies within the spread; 18 rounds on another machine, where rounds lay further apart (0.63 – 1.12),
  gave 0.83 at the median. A worker needs 4.8 µs of the client's time a job and 5.3 of the server's, where two cores have 13 at
  that rate. Having half of what was claimed start while the next claim is under way changed nothing that could be seen there.
- **Drain by hand.** Two loops that claim and settle by five hundred wait for each other: settlements of one process go out one after
  the other, those of raw SQL side by side. (With two under way, a probe: 5 to 6 % more.) The rest is our own time, about 3.5 µs a job
  where raw SQL parses, checks and answers nothing.`,
  settings: `Where throughput counts. Recovery says which settings it uses.`,
  limits: `- **Real jobs do something.** Behind handlers that take milliseconds all of these queues are fast enough; what remains is enqueue,
  pick-up, recovery, and what a job costs.
- **One machine, two cores, client and server on them.** On a server of its own PostgreSQL has more room, every round trip takes longer, and
  who sends fewer statements gains. Nothing here tells of many machines or hundreds of workers. Claims of one Holdfast
  queue and priority take turns, so many processes that each claim one job at a time are its worst case; peers with
  \`skip locked\` do better there.
- **Short runs.** Minutes, not days: nothing is said about vacuum, fragmentation or retention at work.
- **Priorities, dedup, limits, retries and schedules** are left out, because no two queues mean the same by them.
- **We know our own queue best.** The settings of the others are the best that we found; if you know better ones, the files in
  \`bench/peers\` are short.
- **Not here:** BullMQ on PostgreSQL, DBOS, River, Oban. What is said about River's recovery, an hour, is from its documentation.`,
  rerun: `\`\`\`sh
npm run bench -- peers                              # everything: more than half an hour
npm run bench -- peers --quick                      # a few minutes, results not kept
npm run bench -- peers --only drain,single          # some of it
npm run bench -- peers --contenders postgres,graphile
npm run bench -- peers --page                       # this page again, from the results
\`\`\`

The peers are installed into \`bench/peers\` by the first run; Redis is the machine's own or is fetched from Debian's packages and
unpacked there, and BullMQ is left out where neither can be had.`,
} as const

/** Why somebody is ahead, by figure and measure. */
export const whyAhead: Readonly<Record<string, string>> = {
  'backlog ratio': 'Redis takes jobs off the end of a list in memory, however long it is.',
  'costs enqueue clientUs':
    'pg-boss hands its jobs to the server as one JSON value and lets it do the rest, which shows in the next column; we check and encode each job here.',
  'pick-up p50':
    'Redis hands a job to a blocked reader in one step, and its log is synced at leisure or in one small write; we commit to disk, wake the other process, and claim.',
  'pick-up p99': 'The same, at the far end.',
  'costs drain rss':
    'A worker of a thousand jobs at a time, as we run it here, holds more of them in memory than one that takes five hundred.',
  'costs drain logBytes':
    'Nothing kept: a finished job is only deleted. What we write beside that are counts and the record of each call.',
  'costs storage kept':
    'Redis gives memory back at once; a table keeps the space of what was deleted for jobs to come.',
}
