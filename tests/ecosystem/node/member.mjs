// A member of a group of the consumer protocol by @platformatic/kafka: `node member.mjs SERVERS GROUP TOPIC`.
//
// It commits by itself, twice a second. SIGTERM lets it leave. It prints a JSON list for each record that it reads.
// The library ends a stream when a leader is missing from its metadata, and it goes on under a member id that the
// coordinator has forgotten. Then a new consumer takes the place of the old one.
import { Consumer, findErrorBy, stringDeserializers } from '@platformatic/kafka'

const [servers, groupId, topic] = process.argv.slice(2)
let leaving = false
let consumer
let stream

process.once('SIGTERM', async () => {
  leaving = true
  await stream?.close().catch(error => say('close of the stream', error))
  await consumer.close(true).catch(error => say('close', error))
  process.exit(0)
})
while (!leaving) {
  consumer = new Consumer({
    groupId,
    clientId: 'member',
    bootstrapBrokers: servers.split(','),
    deserializers: stringDeserializers,
    groupProtocol: 'consumer',
    retries: 100,
    retryDelay: 200
  })
  try {
    await share()
  } catch (error) {
    say('a new consumer after', error)
    // A stream that closes commits again, and a member that is forgotten would repeat that commit for all its retries.
    stream?.destroy()
    await consumer.close(true).catch(error => say('close', error))
  }
}

async function share () {
  const forgotten = new Promise((_resolve, reject) => {
    consumer.on('consumer:heartbeat:error', ({ error }) => {
      say('heartbeat', error)
      if (findErrorBy(error, 'apiId', 'UNKNOWN_MEMBER_ID')) {
        reject(error)
      }
    })
  })
  const where = { mode: 'committed', fallbackMode: 'earliest' }
  const begun = consumer.consume({ topics: [topic], ...where, autocommit: 500, maxWaitTime: 500 })
  stream = await Promise.race([begun, forgotten])
  stream.on('autocommit', error => error && say('commit', error))
  // Autocommit counts a record as read once the stream has it, so a program may not let records wait in its buffer.
  stream.on('data', record => {
    console.log(JSON.stringify(['record', record.partition, Number(record.offset), record.value]))
  })
  const ended = new Promise((resolve, reject) => stream.once('error', reject).once('close', resolve))
  await Promise.race([ended, forgotten])
}

function say (what, error) {
  const reason = error.errors?.at(-1) ?? error
  console.error(new Date().toISOString(), `${what}: ${reason.apiId ?? reason.code} ${reason.message}`)
}
