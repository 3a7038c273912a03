// The wall clock of a time zone, as milliseconds: 02:30 on a wall is the number that Date.UTC gives for 02:30. Clocks are
// moved, so some wall times occur twice and some never.

const dayMs = 86_400_000

export class WallClock {
  readonly #format: Intl.DateTimeFormat

  /** Throws a RangeError if there is no such time zone. */
  constructor(timeZone: string) {
    const digits = { year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric' } as const
    this.#format = new Intl.DateTimeFormat('en-US', { ...digits, second: 'numeric', hourCycle: 'h23', timeZone })
  }

  /** What the wall shows at this moment. */
  at(moment: number): number {
    const [month = 1, day = 1, year = 0, hour = 0, minute = 0, second = 0] = (
      this.#format.format(moment).match(/\d+/g) ?? []
    ).map(Number)
    return Date.UTC(year, month - 1, day, hour, minute, second) + (((moment % 1_000) + 1_000) % 1_000)
  }

  /** The first moment at which the wall shows this. If that time is skipped: the moment at which the clock is moved past it. */
  firstMoment(wall: number): number {
    const moments = [this.#guess(wall, wall - dayMs), this.#guess(wall, wall + dayMs)]
    const shown = moments.filter((moment) => this.at(moment) === wall)
    return shown.length > 0
      ? Math.min(...shown)
      : this.#search(wall - dayMs, wall + dayMs, (moment) => this.at(moment) > wall)
  }

  /**
   * The greatest wall time whose first moment is not after this one. It is what the wall shows, except when an hour comes the
   * second time: then it is the end of that hour.
   */
  latestShown(moment: number): number {
    const shown = this.at(moment)
    const first = this.firstMoment(shown)
    if (first === moment) return shown
    const offset = first - shown
    const moved = this.#search(first, moment, (each) => each - this.at(each) !== offset)
    return moved - offset - 1
  }

  #guess(wall: number, near: number): number {
    return wall - (this.at(near) - near)
  }

  /** The first moment after `from`, and up to `to`, for which this holds. */
  #search(from: number, to: number, holds: (moment: number) => boolean): number {
    let [low, high] = [from, to]
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2)
      if (holds(middle)) high = middle
      else low = middle
    }
    return high
  }
}
