// How long the files of each room may take, added up, in one whole run on 2 cores. Four files run at a time, so the sum is about
// four times what the clock shows. A room that exceeds its budget is printed, never failed: a busy machine proves nothing.
const budgetSeconds: Record<string, number> = {}

export function* exceededBudgets(secondsOfFile: ReadonlyMap<string, number>): Generator<string> {
  const secondsOfRoom = new Map<string, number>()
  for (const [file, seconds] of secondsOfFile) {
    const room = file.split('/').slice(0, 2).join('/')
    secondsOfRoom.set(room, (secondsOfRoom.get(room) ?? 0) + seconds)
  }
  for (const [room, seconds] of secondsOfRoom) {
    const budget = budgetSeconds[room] ?? 0
    if (seconds > budget) yield `⏱ ${room} took ${seconds.toFixed(0)} s of test time; its budget is ${budget} s\n`
  }
}
