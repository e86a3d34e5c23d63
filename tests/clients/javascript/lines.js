// JSON lines in and out: what both clients' programs need.
import { createInterface } from 'node:readline'

export const say = line => process.stdout.write(JSON.stringify(line, wide) + '\n')

const wide = (_, value) => (typeof value === 'bigint' ? Number(value) : value)

// A record as both clients take it to send.
export const fromLine = text => {
  const { key, value, headers, timestamp } = JSON.parse(text)
  return {
    key: key === null ? null : Buffer.from(key, 'base64'),
    value: value === null ? null : Buffer.from(value, 'base64'),
    headers: Object.fromEntries(headers.map(each => [each.name, Buffer.from(each.value, 'base64')])),
    timestamp
  }
}

export const toLine = ({ key, value, headers, timestamp, partition, offset }) => ({
  key: key?.toString('base64') ?? null,
  value: value?.toString('base64') ?? null,
  headers: headers.map(([name, held]) => ({ name: name.toString(), value: held.toString('base64') })),
  timestamp: Number(timestamp),
  partition,
  offset: Number(offset)
})

// Reads the input to its end, some lines at a time. Nothing is taken from it before: a line that comes early waits.
export async function eachInput (take, size = 100) {
  let held = []
  for await (const line of createInterface({ input: process.stdin })) {
    held.push(line)
    if (held.length === size) {
      await take(held.splice(0))
    }
  }
  if (held.length) {
    await take(held)
  }
}

export const inputEnds = () => eachInput(() => {})

// Runs the command that the arguments name, and ends with it: after a broker's death a pool of connections may have
// lost sight of one that is open (platformatic's does), and that alone would keep the process.
export async function main (commands) {
  const [name, ...rest] = process.argv.slice(2)
  await commands[name](...rest)
  process.stdout.end(() => process.exit())
}
