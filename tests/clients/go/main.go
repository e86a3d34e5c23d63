// The franz-go side of the conformance tests: one command for each scenario, JSON lines in and out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// record is a line of input or output; bytes are base64 in JSON, and null is a missing key or value.
type record struct {
	Key       []byte  `json:"key"`
	Value     []byte  `json:"value"`
	Headers   []field `json:"headers"`
	Timestamp int64   `json:"timestamp"`
	Partition int32   `json:"partition"`
	Offset    int64   `json:"offset"`
}

type field struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

type line map[string]any

var (
	out      = json.NewEncoder(os.Stdout)
	speaking sync.Mutex
)

// say prints a line; lines of several goroutines do not mix.
func say(what any) {
	speaking.Lock()
	defer speaking.Unlock()
	check(out.Encode(what))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int64 {
	parsed, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return parsed
}

// throttled tells for how long the broker throttles the client.
type throttled struct{}

func (throttled) OnBrokerThrottle(_ kgo.BrokerMetadata, interval time.Duration, _ bool) {
	say(line{"throttled": interval.Milliseconds()})
}

func connect(bootstrap string, more ...kgo.Opt) *kgo.Client {
	more = append(more, kgo.ClientID("conformance"), kgo.WithHooks(throttled{}))
	client, err := kgo.NewClient(append(more, connection(bootstrap)...)...)
	check(err)
	return client
}

func main() {
	ctx := context.Background()
	bootstrap, topic, rest := os.Args[2], os.Args[3], os.Args[4:]
	switch os.Args[1] {
	case "produce":
		produce(ctx, bootstrap, topic, rest[0])
	case "consume":
		consume(ctx, bootstrap, topic, rest[0], number(rest[1]))
	case "member":
		member(ctx, bootstrap, topic, rest[0], rest[1], number(rest[2]))
	case "seek":
		seek(ctx, bootstrap, topic, rest)
	case "read":
		read(ctx, bootstrap, topic)
	case "admin":
		administer(ctx, bootstrap, topic)
	case "transform":
		transform(ctx, bootstrap, topic, rest[0], number(rest[1]))
	case "transact":
		transact(ctx, bootstrap, topic)
	case "fence":
		fence(ctx, bootstrap, topic)
	case "groups":
		administerGroup(ctx, bootstrap, topic, rest[0])
	}
}

// inputLines calls back with each line of the input, and returns at its end.
func inputLines(take func([]byte)) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		take(lines.Bytes())
	}
	check(lines.Err())
}
