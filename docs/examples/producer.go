// Puts two messages on their queues. REDIS_URL says where.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// enqueue sends one message and returns the id of its entry. After an error, repeat it with the same messageID.
func enqueue(
	ctx context.Context, client *redis.Client, queue, messageID string, payload map[string]any,
) (string, error) {
	body, err := json.Marshal(payload)
	if err != nil {
		return "", err
	}
	return client.XAdd(ctx, &redis.XAddArgs{
		Stream: queue,
		Values: map[string]any{"payload": body, "message_id": messageID},
	}).Result()
}

func main() {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	messages := []struct {
		queue   string
		payload map[string]any
	}{
		{"line_user_last_activity", map[string]any{
			"lineUserId": "U0123456789abcdef0123456789abcdef", "lineOaId": 1, "organizationId": 1,
			"activityType": "message", "activityStatus": "active",
		}},
		{"create_audience", map[string]any{
			"audienceId": 7, "lineOaId": 1, "organizationId": 1, "filePath": "up/7.csv",
		}},
	}
	for _, message := range messages {
		id, err := enqueue(context.Background(), client, message.queue, uuid.NewString(), message.payload)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(id)
	}
}
