// How long the files of each room may take, added up, in one whole run on 2 cores. Four files run at a time, so the sum is about
// four times what the clock shows. A room that exceeds its budget is printed, never failed: a busy machine proves nothing.
const budgetSeconds: Readonly<Record<string, number>> = {
  'test/adapters': 70,
  'test/batch': 40,
  'test/cli': 340,
  'test/client': 40,
  'test/conformance': 800,
  'test/examples': 70,
  'test/faults': 270,
  'test/house': 200,
  'test/model': 500,
  'test/observe': 10,
  'test/package': 240,
  'test/postgres': 1400,
  'test/reaper': 35,
  'test/schedule': 80,
  'test/server': 5,
  'test/simulate': 200,
  'test/sqlite': 220,
  'test/system': 60,
  'test/testing': 25,
  'test/torture': 180,
  'test/types': 5,
  'test/webhook': 15,
  'test/worker': 600,
}

export function* exceededBudgets(secondsOfFile: ReadonlyMap<string, number>): Generator<string> {
  const secondsOfRoom = new Map<string, number>()
  for (const [file, seconds] of secondsOfFile) {
    const room = file.split('/').slice(0, 2).join('/')
    secondsOfRoom.set(room, (secondsOfRoom.get(room) ?? 0) + seconds)
  }
  for (const [room, seconds] of secondsOfRoom) {
    const budget = budgetSeconds[room] ?? 0
    if (seconds <= budget) continue
    const slowest = [...secondsOfFile].filter(([file]) => file.startsWith(`${room}/`)).sort(([, a], [, b]) => b - a)
    const named = slowest.slice(0, 3).map(([file, took]) => `${file.slice(room.length + 1)} ${took.toFixed(0)} s`)
    yield `⏱ ${room} took ${seconds.toFixed(0)} s of test time, of a budget of ${budget} s: ${named.join(', ')}\n`
  }
}
