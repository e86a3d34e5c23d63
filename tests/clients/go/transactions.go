package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const atOnce = 5

// transform doubles the numbers of a topic into another; the first attempt at each third portion is aborted.
func transform(ctx context.Context, bootstrap, source, target string, count int64) {
	session, err := kgo.NewGroupTransactSession(append(connection(bootstrap),
		kgo.TransactionalID(source),
		kgo.ConsumerGroup(source),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.DefaultProduceTopic(target),
	)...)
	check(err)
	attempted := map[int64]bool{}
	for done := int64(0); done < count; {
		fetches := session.PollRecords(ctx, atOnce)
		check(fetches.Err())
		check(session.Begin())
		fetches.EachRecord(func(read *kgo.Record) {
			value := strconv.FormatInt(2*number(string(read.Value)), 10)
			session.Produce(ctx, kgo.StringRecord(value), func(_ *kgo.Record, err error) {
				if !errors.Is(err, kgo.ErrAborting) {
					check(err)
				}
			})
		})
		aborts := done/atOnce%3 == 1 && !attempted[done]
		attempted[done] = true
		committed, err := session.End(ctx, kgo.TransactionEndTry(!aborts))
		check(err)
		if committed {
			done += int64(fetches.NumRecords())
		}
	}
	session.Close()
}

// transact aborts a transaction, and commits another one.
func transact(ctx context.Context, bootstrap, topic string) {
	client := connect(bootstrap, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	transaction := func(value string, end kgo.TransactionEndTry) {
		check(client.BeginTransaction())
		check(client.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
		check(client.EndTransaction(ctx, end))
	}
	transaction("aborted", kgo.TryAbort)
	transaction("committed", kgo.TryCommit)
	client.Close()
}

// fence lets a successor take over the transactional id of a producer in the middle of its transaction.
func fence(ctx context.Context, bootstrap, topic string) {
	zombie := connect(bootstrap, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	check(zombie.BeginTransaction())
	check(zombie.ProduceSync(ctx, kgo.StringRecord("zombie")).FirstErr())
	successor := connect(bootstrap, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	check(successor.BeginTransaction())
	check(successor.ProduceSync(ctx, kgo.StringRecord("successor")).FirstErr())
	check(successor.EndTransaction(ctx, kgo.TryCommit))
	refused := zombie.EndTransaction(ctx, kgo.TryCommit)
	outcome := line{"step": "fence"}
	var known *kerr.Error
	if errors.As(refused, &known) {
		outcome["error"] = known.Message
	}
	say(outcome)
	zombie.Close()
	successor.Close()
}
