// A member of a group of the consumer protocol by @platformatic/kafka: `node member.mjs SERVERS GROUP TOPIC`.
//
// It commits by itself, twice a second. SIGTERM lets it leave. It prints a JSON list for each record that it reads. The
// client ends by an exception when a broker is gone, and stays away once it is fenced: then its process is started anew.
import { spawn } from 'node:child_process'
import { Consumer, stringDeserializers } from '@platformatic/kafka'

if (process.env.IS_MEMBER) {
  await share(...process.argv.slice(2))
} else {
  watch()
}

function watch () {
  let leaving = false
  let member
  const start = () => {
    member = spawn(process.execPath, process.argv.slice(1), { stdio: 'inherit', env: { ...process.env, IS_MEMBER: 'yes' } })
    member.once('exit', () => {
      if (leaving) {
        process.exit(0)
      }
      start()
    })
  }
  start()
  process.once('SIGTERM', () => {
    leaving = true
    member.kill('SIGTERM')
  })
}

async function share (servers, groupId, topic) {
  const consumer = new Consumer({
    groupId,
    clientId: 'member',
    bootstrapBrokers: servers.split(','),
    deserializers: stringDeserializers,
    groupProtocol: 'consumer',
    retries: 100,
    retryDelay: 200
  })
  let stream
  process.once('SIGTERM', async () => {
    await stream?.close()
    await consumer.close()
    process.exit(0)
  })
  consumer.on('error', error => console.error('consumer', error))
  consumer.on('consumer:heartbeat:error', ({ error }) => {
    if (error.findBy?.('apiId', 'UNKNOWN_MEMBER_ID')) {
      console.error('fenced')
      process.exit(1)
    }
  })
  const where = { mode: 'committed', fallbackMode: 'earliest' }
  stream = await consumer.consume({ topics: [topic], ...where, autocommit: 500, maxWaitTime: 500 })
  stream.on('error', error => {
    console.error('stream', error)
    process.exit(1)
  })
  stream.on('autocommit', error => {
    if (error) {
      console.error('commit', error.message)
    }
  })
  stream.on('data', record => {
    console.log(JSON.stringify(['record', record.partition, Number(record.offset), record.value]))
  })
}
