export function die(): never {
  process.kill(process.pid, 'SIGKILL')
  throw new Error('it takes a moment')
}
