// Puts two messages on their queues. REDIS_URL says where.
import { randomUUID } from "node:crypto";
import { createClient } from "redis";

const client = await createClient({ url: process.env.REDIS_URL }).connect();

// Sends one message and returns the id of its entry. After an error, repeat it with the same messageId.
async function enqueue(queue: string, messageId: string, payload: Record<string, unknown>): Promise<string> {
  return await client.xAdd(queue, "*", { payload: JSON.stringify(payload), message_id: messageId });
}

console.log(
  await enqueue("line_user_last_activity", randomUUID(), {
    lineUserId: "U0123456789abcdef0123456789abcdef",
    lineOaId: 1,
    organizationId: 1,
    activityType: "message",
    activityStatus: "active",
  }),
);
console.log(
  await enqueue("create_audience", randomUUID(), {
    audienceId: 7,
    lineOaId: 1,
    organizationId: 1,
    filePath: "up/7.csv",
  }),
);
await client.close();
