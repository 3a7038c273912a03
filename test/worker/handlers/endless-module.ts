// Never loads.
await new Promise(() => setInterval(() => undefined, 1_000))

export default () => 'never'
