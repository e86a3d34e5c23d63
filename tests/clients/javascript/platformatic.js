// The @platformatic/kafka side of the conformance tests: one command for each scenario.
import { randomUUID } from 'node:crypto'
import { tracingChannel } from 'node:diagnostics_channel'
import { setTimeout } from 'node:timers/promises'
import {
  Admin, ConfigResourceTypes, Consumer, IncrementalAlterConfigOperationTypes, ProduceAcks, Producer, stringSerializers
} from '@platformatic/kafka'
import { eachInput, fromLine, inputEnds, main, say, toLine } from './lines.js'
import { login, readToken, tls } from './security.js'

const connection = bootstrap => ({
  clientId: 'conformance', bootstrapBrokers: bootstrap.split(','), tls, retries: 20, retryDelay: 100,
  sasl: readToken ? { mechanism: 'OAUTHBEARER', token: readToken } : login
})

// The client itself does nothing with what a broker says of throttling; its diagnostics show it.
tracingChannel('plt:kafka:connections:api').subscribe({
  asyncStart ({ result }) {
    if (result?.throttleTimeMs > 0) {
      say({ throttled: result.throttleTimeMs })
    }
  }
})

const shown = message => toLine({ ...message, headers: message.headerEntries })

async function produce (bootstrap, topic, compression) {
  const producer = new Producer({ ...connection(bootstrap), idempotent: true, compression, retries: true })
  let acknowledged = 0
  await eachInput(async lines => {
    const messages = lines.map(fromLine).map(each => ({
      ...each,
      topic,
      key: each.key ?? undefined,
      headers: new Map(Object.entries(each.headers).map(([name, value]) => [Buffer.from(name), value])),
      timestamp: BigInt(each.timestamp)
    }))
    await producer.send({ messages })
    acknowledged += messages.length
    say({ acknowledged })
  })
  await producer.close()
}

// What a consumer has read and not committed yet.
class Positions {
  #next = new Map()

  read ({ topic, partition, offset, leaderEpoch }) {
    this.#next.set(partition, { topic, partition, offset, leaderEpoch })
  }

  // Returns the committed offsets by partition. After a failure the next commit includes them again.
  async commit (consumer) {
    const read = [...this.#next.values()]
    const offsets = read.map(each => ({ ...each, offset: each.offset + 1n }))
    if (offsets.length) {
      await consumer.commit({ offsets })
    }
    read.filter(each => this.#next.get(each.partition) === each).forEach(each => this.#next.delete(each.partition))
    return Object.fromEntries(offsets.map(each => [each.partition, each.offset]))
  }
}

async function consume (bootstrap, topic, groupId, count) {
  const consumer = new Consumer({ ...connection(bootstrap), groupId, autocommit: false })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
  const positions = new Positions()
  for await (const message of stream) {
    say(shown(message))
    positions.read(message)
    count -= 1
    if (count === 0) {
      break
    }
  }
  await positions.commit(consumer)
  await consumer.close(true)
}

const classic = { groupProtocol: 'classic', heartbeatInterval: 300 }
const groups = {
  eager: classic,
  cooperative: { ...classic, protocols: [{ name: 'cooperative-sticky', version: 1 }] },
  consumer: { groupProtocol: 'consumer' }
}

// Reads as one of a group until the input ends. Prints what is assigned, read and committed.
async function member (bootstrap, topic, groupId, protocol, sessionMs) {
  const timeouts = { sessionTimeout: Number(sessionMs), rebalanceTimeout: 2 * Number(sessionMs) }
  const session = protocol === 'consumer' ? {} : timeouts
  const consumer = new Consumer({ ...connection(bootstrap), groupId, ...groups[protocol], ...session })
  let told = []
  const tell = () => {
    const assigned = consumer.assignments?.find(each => each.topic === topic)?.partitions ?? []
    if (String(assigned) !== String(told)) {
      told = [...assigned]
      say({ assigned })
    }
  }
  // With the newer protocol there is no event for a new assignment; the next heartbeat knows of it.
  consumer.on('consumer:group:join', tell)
  consumer.on('consumer:heartbeat:end', tell)
  // After a rebalance it looks for commits of partitions that it has lost, which would make the mode 'fail' fail.
  const stream = await consumer.consume({
    topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, maxWaitTime: 500
  })
  const positions = new Positions()
  stream.on('data', message => {
    say(shown(message))
    positions.read(message)
  })
  const commit = async () => {
    try {
      const committed = await positions.commit(consumer)
      if (Object.keys(committed).length) {
        say({ committed })
      }
    } catch (error) {
      say({ refused: error.findBy?.('code', 'PLT_KFK_PROTOCOL')?.apiId ?? error.message, retriable: error.canRetry })
    }
  }
  let isOver = false
  inputEnds().then(() => { isOver = true })
  while (!isOver) {
    await setTimeout(100)
    await commit()
  }
  await stream.close()
  await commit()
  await consumer.close()
}

// Aborts a transaction, and commits another one.
async function transact (bootstrap, topic) {
  const settings = { transactionalId: topic, idempotent: true, serializers: stringSerializers }
  const producer = new Producer({ ...connection(bootstrap), ...settings })
  const aborted = await producer.beginTransaction()
  await aborted.send({ messages: [{ topic, value: 'aborted' }] })
  await aborted.abort()
  const committed = await producer.beginTransaction()
  await committed.send({ messages: [{ topic, value: 'committed' }] })
  await committed.commit()
  await producer.close()
}

// Prints the first partition, from its start to its end.
async function read (bootstrap, topic) {
  const consumer = new Consumer({ ...connection(bootstrap), groupId: randomUUID() })
  const end = (await consumer.listOffsets({ topics: [topic] })).get(topic)[0]
  const stream = await consumer.consume({ topics: [topic], mode: 'earliest' })
  for await (const message of stream) {
    say(shown(message))
    if (message.offset === end - 1n) {
      break
    }
  }
  await consumer.close(true)
}

async function seek (bootstrap, topic, ...times) {
  for (const time of times) {
    const consumer = new Consumer({ ...connection(bootstrap), groupId: randomUUID() })
    const found = await consumer.listOffsets({ topics: [topic], timestamp: BigInt(time) })
    const offsets = [{ topic, partition: 0, offset: found.get(topic)[0] }]
    const stream = await consumer.consume({ topics: [topic], mode: 'manual', offsets })
    for await (const message of stream) {
      say(shown(message))
      break
    }
    await consumer.close(true)
  }
}

// Tells Kafka's name of the error that a step has to end in.
async function refused (step, promise) {
  const error = await promise.then(() => null, failure => failure)
  say({ step, error: error.findBy('code', 'PLT_KFK_PROTOCOL')?.apiId ?? error.message })
}

async function administer (bootstrap, topic) {
  const admin = new Admin(connection(bootstrap))
  const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: topic }
  const retention = async () => {
    const [{ configs }] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['retention.ms'] }] })
    return { 'retention.ms': configs[0].value }
  }
  const alter = value => {
    const configs = [{ name: 'retention.ms', configOperation: IncrementalAlterConfigOperationTypes.SET, value }]
    return admin.incrementalAlterConfigs({ resources: [{ ...resource, configs }] })
  }
  const described = { topics: [topic], partitions: 2, replicas: -1, configs: [{ name: 'retention.ms', value: '60000' }] }

  const [created] = await admin.createTopics(described)
  say({ step: 'create', partitions: created.partitions })
  await refused('create again', admin.createTopics(described))
  say({ step: 'configs', ...(await retention()) })
  await alter('120000')
  say({ step: 'alter', ...(await retention()) })
  await refused('alter badly', alter('soon'))
  await admin.createPartitions({ topics: [{ name: topic, count: 4 }] })
  const metadata = await admin.metadata({ topics: [topic], forceUpdate: true })
  say({ step: 'grow', partitions: metadata.topics.get(topic).partitionsCount })

  await deleteRecords(bootstrap, admin, topic)

  await admin.deleteTopics({ topics: [topic] })
  say({ step: 'delete', listed: (await admin.listTopics()).includes(topic) })
  await admin.close()
}

async function deleteRecords (bootstrap, admin, topic) {
  const producer = new Producer({ ...connection(bootstrap), serializers: stringSerializers })
  const messages = Array.from({ length: 10 }, () => ({ topic, partition: 0, value: 'x' }))
  await producer.send({ messages, acks: ProduceAcks.ALL })
  await producer.close()
  const before = offset => admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset }] }] })
  await before(4n)
  const edge = async timestamp => {
    const [found] = await admin.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: 0, timestamp }] }] })
    return found.partitions[0].offset
  }
  say({ step: 'delete records', start: await edge(-2n), end: await edge(-1n) })
  await refused('delete records beyond', before(99n))
}

async function administerGroup (bootstrap, topic, groupId) {
  const admin = new Admin(connection(bootstrap))
  const listed = async () => (await admin.listGroups()).has(groupId)
  const offsets = async () => (await admin.listConsumerGroupOffsets({ groups: [groupId] }))[0].topics
  const offset = async () => (await offsets())[0].partitions[0].committedOffset
  say({ step: 'list', listed: await listed() })
  const group = (await admin.describeGroups({ groups: [groupId] })).get(groupId)
  say({ step: 'describe', state: group.state, members: group.members.size })
  say({ step: 'offsets', offset: await offset() })
  const moved = [{ name: topic, partitionOffsets: [{ partition: 0, offset: 3n }] }]
  await admin.alterConsumerGroupOffsets({ groupId, topics: moved })
  say({ step: 'alter offsets', offset: await offset() })
  await admin.deleteConsumerGroupOffsets({ groupId, topics: [{ name: topic, partitionIndexes: [0] }] })
  say({ step: 'delete offsets', left: (await offsets()).length })
  await admin.alterConsumerGroupOffsets({ groupId, topics: moved })
  await admin.deleteGroups({ groups: [groupId] })
  say({ step: 'delete', listed: await listed() })
  await refused('delete again', admin.deleteGroups({ groups: [groupId] }))
  await admin.close()
}

await main({ produce, consume, member, read, seek, transact, admin: administer, groups: administerGroup })
