package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// member reads as one of a group until the input ends; it prints what is assigned, read and committed.
func member(ctx context.Context, bootstrap, topic, group, protocol string, sessionMs int64) {
	var guard sync.Mutex
	assigned := []int32{}
	tell := func(change func()) {
		guard.Lock()
		defer guard.Unlock()
		change()
		slices.Sort(assigned)
		say(line{"assigned": assigned})
	}
	lost := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		tell(func() {
			assigned = slices.DeleteFunc(assigned, func(each int32) bool { return slices.Contains(parts[topic], each) })
		})
	}
	won := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		tell(func() { assigned = append(assigned, parts[topic]...) })
	}
	options := []kgo.Opt{
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.OnPartitionsAssigned(won),
		kgo.OnPartitionsRevoked(lost),
		kgo.OnPartitionsLost(lost),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.SessionTimeout(time.Duration(sessionMs) * time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}
	switch protocol {
	case "eager":
		options = append(options, kgo.Balancers(kgo.RangeBalancer()))
	case "cooperative":
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	case "consumer":
		options = append(options, kgo.ServerSideBalancer())
	}
	client := connect(bootstrap, options...)
	stopping, stop := context.WithCancel(ctx)
	go func() {
		inputLines(func([]byte) {})
		stop()
	}()
	for stopping.Err() == nil {
		fetched := client.PollFetches(stopping)
		guard.Lock()
		fetched.EachRecord(func(found *kgo.Record) { say(shown(found)) })
		guard.Unlock()
		for _, failed := range fetched.Errors() {
			if stopping.Err() == nil {
				refusal(failed.Err)
			}
		}
		commit(ctx, client, topic)
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}

// commit commits what was read, and prints what the broker has confirmed.
func commit(ctx context.Context, client *kgo.Client, topic string) {
	offsets := client.UncommittedOffsets()
	if len(offsets[topic]) == 0 {
		return
	}
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		refusal(err)
		return
	}
	confirmed := map[int32]int64{}
	for partition, offset := range offsets[topic] {
		confirmed[partition] = offset.Offset
	}
	say(line{"committed": confirmed})
}

// refusal prints an error that the client has left to the application.
func refusal(err error) {
	var network net.Error
	isRetriable := kerr.IsRetriable(err) || kgo.IsRetryableBrokerErr(err) || errors.As(err, &network)
	say(line{"refused": err.Error(), "retriable": isRetriable})
}
