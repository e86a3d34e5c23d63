package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// member reads as one of a group until the input ends; it tells what it is assigned, and what it reads.
func member(ctx context.Context, bootstrap, topic, group, protocol string) {
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
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(won),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, parts map[string][]int32) {
			check(client.CommitUncommittedOffsets(ctx))
			lost(ctx, client, parts)
		}),
		kgo.OnPartitionsLost(lost),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.SessionTimeout(3 * time.Second),
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
		client.AllowRebalance()
	}
	check(client.CommitUncommittedOffsets(ctx))
	client.CloseAllowingRebalance()
}
