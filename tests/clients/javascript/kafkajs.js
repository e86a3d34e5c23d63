// The kafkajs side of the conformance tests: one command for each scenario.
import { constants, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { setTimeout } from 'node:timers/promises'
import kafkajs from 'kafkajs'
import SnappyCodec from 'kafkajs-snappy'
import lz4 from 'lz4js'
import { eachInput, fromLine, inputEnds, main, say, toLine } from './lines.js'
import { login, readToken, tls } from './security.js'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs
const { AclResourceTypes: ACL, AclOperationTypes: Operations, AclPermissionTypes: Permissions } = kafkajs
const { ResourcePatternTypes: Patterns } = kafkajs

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async buffer => Buffer.from(lz4.decompress(buffer))
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zstdCompressSync(encoder.buffer, { params: { [constants.ZSTD_c_compressionLevel]: 3 } }),
  decompress: async buffer => zstdDecompressSync(buffer)
})

const codecs = { none: 'None', gzip: 'GZIP', snappy: 'Snappy', lz4: 'LZ4', zstd: 'ZSTD' }

// That it is throttled, kafkajs tells in its log alone.
const logCreator = () => ({ log: { message } }) => {
  const [, throttled] = message.match(/^Client side throttling in effect for (\d+)ms/) ?? []
  if (throttled) {
    say({ throttled: Number(throttled) })
  }
}

const sasl = readToken
  ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: readToken() }) }
  : login && { ...login, mechanism: login.mechanism.toLowerCase() }

const connect = bootstrap => new Kafka({
  brokers: bootstrap.split(','),
  clientId: 'conformance',
  ssl: tls,
  sasl,
  logLevel: logLevel.DEBUG,
  logCreator,
  retry: { initialRetryTime: 100, retries: 20 }
})

const shown = (message, partition) => toLine({ ...message, headers: Object.entries(message.headers), partition })

// Each send is to one partition. One to several leaders leaves out messages, and does not fail, if a partition moves
// from one of the leaders to another one that has answered already.
async function produce (bootstrap, topic, codec) {
  const kafka = connect(bootstrap)
  const count = await partitionCount(kafka, topic)
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  let acknowledged = 0
  await eachInput(async lines => {
    const records = lines.map(fromLine).map((each, index) => ({
      ...each, timestamp: String(each.timestamp), partition: index % count
    }))
    for (const partition of new Set(records.map(each => each.partition))) {
      const messages = records.filter(each => each.partition === partition)
      await producer.send({ topic, compression: CompressionTypes[codecs[codec]], messages })
      acknowledged += messages.length
    }
    say({ acknowledged })
  })
  await producer.disconnect()
}

async function partitionCount (kafka, topic) {
  const admin = kafka.admin()
  await admin.connect()
  const { topics: [{ partitions }] } = await admin.fetchTopicMetadata({ topics: [topic] })
  await admin.disconnect()
  return partitions.length
}

async function consume (bootstrap, topic, groupId, count) {
  const consumer = connect(bootstrap).consumer({ groupId, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const next = new Map()
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch }) => {
        for (const message of batch.messages) {
          say(shown(message, batch.partition))
          count -= 1
        }
        next.set(batch.partition, String(BigInt(batch.lastOffset()) + 1n))
        if (count === 0) {
          resolve()
        }
      }
    })
  })
  await consumer.commitOffsets([...next].map(([partition, offset]) => ({ topic, partition, offset })))
  await consumer.disconnect()
}

// Reads as one of a group until the input ends. Prints what is assigned, read and committed.
async function member (bootstrap, topic, groupId, _, sessionMs) {
  const consumer = connect(bootstrap).consumer({
    groupId,
    sessionTimeout: Number(sessionMs),
    heartbeatInterval: 300,
    maxWaitTimeInMs: 500,
    // A consumer looks for the group's new coordinator only after its last retry.
    retry: { initialRetryTime: 100, retries: 5 }
  })
  consumer.on(consumer.events.REBALANCING, () => say({ assigned: [] }))
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => say({ assigned: payload.memberAssignment[topic] ?? [] }))
  consumer.on(consumer.events.CRASH, ({ payload }) => refusal(payload))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, commitOffsetsIfNecessary }) => {
      const { partition, messages } = batch
      messages.forEach(message => say(shown(message, partition)))
      resolveOffset(batch.lastOffset())
      const next = BigInt(batch.lastOffset()) + 1n
      // The consumer's own commitOffsets repeats a commit of an old generation, and then gives up for ever.
      await commitOffsetsIfNecessary({ topics: [{ topic, partitions: [{ partition, offset: String(next) }] }] })
      say({ committed: { [partition]: next } })
    }
  })
  await inputEnds()
  // After a restart of the consumer it may wait for ever.
  await Promise.race([consumer.disconnect(), setTimeout(10_000)])
  process.exit()
}

// Prints an error at which the consumer has given up; it restarts by itself if the error is retriable.
function refusal ({ error, restart }) {
  say({ refused: error.cause?.type ?? error.type ?? error.name, retriable: restart })
}

// Aborts a transaction, and commits another one.
async function transact (bootstrap, topic) {
  const producer = connect(bootstrap).producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const aborted = await producer.transaction()
  await aborted.send({ topic, messages: [{ value: 'aborted' }] })
  await aborted.abort()
  const committed = await producer.transaction()
  await committed.send({ topic, messages: [{ value: 'committed' }] })
  await committed.commit()
  await producer.disconnect()
}

// Prints the first partition, from its start to its end.
async function read (bootstrap, topic) {
  const kafka = connect(bootstrap)
  const admin = kafka.admin()
  await admin.connect()
  const [{ high }] = await admin.fetchTopicOffsets(topic)
  await admin.disconnect()
  const consumer = kafka.consumer({ groupId: `${topic}-read`, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise(resolve => {
    consumer.run({
      eachMessage: async ({ message, partition }) => {
        say(shown(message, partition))
        if (BigInt(message.offset) === BigInt(high) - 1n) {
          resolve()
        }
      }
    })
  })
  await consumer.disconnect()
}

async function seek (bootstrap, topic, ...times) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  for (const time of times) {
    const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, Number(time))
    const consumer = connect(bootstrap).consumer({ groupId: `${topic}-${time}`, maxWaitTimeInMs: 500 })
    await consumer.connect()
    await consumer.subscribe({ topic })
    await new Promise(resolve => {
      consumer.run({
        eachBatch: async ({ batch }) => {
          resolve(say(shown(batch.messages[0], batch.partition)))
        }
      })
      consumer.seek({ topic, partition: 0, offset })
    })
    await consumer.disconnect()
  }
  await admin.disconnect()
}

// Tells Kafka's name of the error that a step has to end in.
async function refused (step, promise) {
  const error = await promise.then(() => null, failure => failure)
  const cause = error.errors?.[0] ?? error.groups?.[0]?.error ?? error.partitions?.[0]?.error ?? error
  say({ step, error: cause.type ?? cause.message })
}

async function administer (bootstrap, topic) {
  const kafka = connect(bootstrap)
  const admin = kafka.admin()
  await admin.connect()
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const retention = async () => {
    const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
    return { 'retention.ms': resources[0].configEntries[0].configValue }
  }
  const alter = value =>
    admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value }] }] })
  const partitions = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  const described = { topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '60000' }] }

  await admin.createTopics({ topics: [described] })
  say({ step: 'create', partitions: await partitions() })
  // kafkajs answers false, and does so for this one error alone.
  const again = await admin.createTopics({ topics: [described] })
  say({ step: 'create again', error: again ? null : 'TOPIC_ALREADY_EXISTS' })
  say({ step: 'configs', ...(await retention()) })
  await alter('120000')
  say({ step: 'alter', ...(await retention()) })
  await refused('alter badly', alter('soon'))
  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  say({ step: 'grow', partitions: await partitions() })

  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: Array.from({ length: 10 }, () => ({ value: 'x', partition: 0 })) })
  await producer.disconnect()
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  const { low, high } = (await admin.fetchTopicOffsets(topic)).find(each => each.partition === 0)
  say({ step: 'delete records', start: Number(low), end: Number(high) })

  await admin.deleteTopics({ topics: [topic] })
  say({ step: 'delete', listed: (await admin.listTopics()).includes(topic) })
  await admin.disconnect()
}

async function administerGroup (bootstrap, topic, groupId) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  const listed = async () => (await admin.listGroups()).groups.some(each => each.groupId === groupId)
  const offset = async () => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    return Number(partitions[0].offset)
  }
  say({ step: 'list', listed: await listed() })
  const { groups: [{ state, members }] } = await admin.describeGroups([groupId])
  say({ step: 'describe', state, members: members.length })
  say({ step: 'offsets', offset: await offset() })
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '3' }] })
  say({ step: 'alter offsets', offset: await offset() })
  await admin.deleteGroups([groupId])
  say({ step: 'delete', listed: await listed() })
  await refused('delete again', admin.deleteGroups([groupId]))
  await admin.disconnect()
}

async function administerAcls (bootstrap, topic) {
  const admin = connect(bootstrap).admin()
  await admin.connect()
  const any = { resourceType: ACL.TOPIC, operation: Operations.ANY, permissionType: Permissions.ANY }
  const described = async () => {
    const counting = { ...any, resourceName: topic, resourcePatternType: Patterns.MATCH }
    const { resources } = await admin.describeAcls(counting)
    const shown = ({ principal, operation, permissionType }) => `${principal} ${operation} ${permissionType}`
    return resources.flatMap(({ acls }) => acls.map(shown)).sort()
  }
  const literal = { resourceType: ACL.TOPIC, resourceName: topic, resourcePatternType: Patterns.LITERAL }
  const prefixed = { ...literal, resourceName: topic.slice(0, -1), resourcePatternType: Patterns.PREFIXED }
  const read = { host: '*', operation: Operations.READ, permissionType: Permissions.ALLOW }
  const write = { host: '*', operation: Operations.WRITE, permissionType: Permissions.DENY }

  const acl = [{ ...literal, principal: 'User:alice', ...read }, { ...prefixed, principal: 'User:*', ...write }]
  await admin.createAcls({ acl })
  say({ step: 'create', acls: await described() })
  await refused('create badly', admin.createAcls({ acl: [{ ...literal, principal: 'alice', ...read }] }))
  const wanted = { ...any, ...literal, principal: 'User:alice' }
  const { filterResponses: [{ matchingAcls }] } = await admin.deleteAcls({ filters: [wanted] })
  say({ step: 'delete', deleted: matchingAcls.length })
  say({ step: 'left', acls: await described() })
  await admin.disconnect()
}

const commands = { produce, consume, member, read, seek, transact }
await main({ ...commands, admin: administer, groups: administerGroup, acls: administerAcls })
