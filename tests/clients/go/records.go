package main

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// produce sends the records of the input; the producer is idempotent, as franz-go's always is by default.
// Each thousandth that is acknowledged is told.
func produce(ctx context.Context, bootstrap, topic, codec string) {
	client := connect(bootstrap,
		kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(codecs[codec]),
		kgo.ProducerLinger(5*time.Millisecond),
	)
	var acknowledged atomic.Int64
	inputLines(func(text []byte) {
		var given record
		check(json.Unmarshal(text, &given))
		sent := &kgo.Record{Key: given.Key, Value: given.Value, Timestamp: time.UnixMilli(given.Timestamp)}
		for _, each := range given.Headers {
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: each.Name, Value: each.Value})
		}
		client.Produce(ctx, sent, func(_ *kgo.Record, err error) {
			check(err)
			if count := acknowledged.Add(1); count%1000 == 0 {
				say(line{"acknowledged": count})
			}
		})
	})
	check(client.Flush(ctx))
	client.Close()
}

// consume prints as many records as a group gets, then commits them and leaves.
func consume(ctx context.Context, bootstrap, topic, group string, count int64) {
	client := connect(bootstrap,
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	for count > 0 {
		fetched := client.PollRecords(ctx, int(min(count, 10_000)))
		for _, failed := range fetched.Errors() {
			check(failed.Err)
		}
		fetched.EachRecord(func(found *kgo.Record) { say(shown(found)) })
		count -= int64(fetched.NumRecords())
	}
	check(client.CommitUncommittedOffsets(ctx))
	client.Close()
}

func shown(found *kgo.Record) record {
	headers := []field{}
	for _, each := range found.Headers {
		headers = append(headers, field{each.Key, each.Value})
	}
	return record{found.Key, found.Value, headers, found.Timestamp.UnixMilli(), found.Partition, found.Offset}
}

// seek prints, for each time, the offset of the first record that is not older, and what is read from there.
func seek(ctx context.Context, bootstrap, topic string, times []string) {
	for _, each := range times {
		start := kgo.NewOffset().AfterMilli(number(each))
		client := connect(bootstrap, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start}}))
		fetched := client.PollRecords(ctx, 1)
		check(fetched.Err())
		say(shown(fetched.Records()[0]))
		client.Close()
	}
}

// read prints the first partition, from its start to its end.
func read(ctx context.Context, bootstrap, topic string) {
	start := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	client := connect(bootstrap, kgo.ConsumePartitions(start))
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	check(err)
	for offset := int64(-1); offset < ends[topic][0].Offset-1; {
		fetched := client.PollFetches(ctx)
		check(fetched.Err())
		fetched.EachRecord(func(found *kgo.Record) {
			say(shown(found))
			offset = found.Offset
		})
	}
	client.Close()
}
