package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const setting = "retention.ms"

// refused tells Kafka's name of an error that has to come.
func refused(step string, err error) {
	var known *kerr.Error
	if !errors.As(err, &known) {
		panic(step)
	}
	say(line{"step": step, "error": known.Message})
}

// administer does to a topic what an administrator does, and tells each step's outcome.
func administer(ctx context.Context, bootstrap, topic string) {
	client := connect(bootstrap, kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer client.Close()
	admin := kadm.NewClient(client)

	first, second := "60000", "120000"
	created, err := admin.CreateTopic(ctx, 2, -1, map[string]*string{setting: &first}, topic)
	check(err)
	say(line{"step": "create", "partitions": created.NumPartitions})
	_, err = admin.CreateTopic(ctx, 2, -1, nil, topic)
	refused("create again", err)

	say(line{"step": "configs", setting: retention(ctx, admin, topic)})
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: setting, Value: &second}}, topic)
	check(err)
	check(altered[0].Err)
	say(line{"step": "alter", setting: retention(ctx, admin, topic)})
	soon := "soon"
	altered, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: setting, Value: &soon}}, topic)
	check(err)
	refused("alter badly", altered[0].Err)

	grown, err := admin.UpdatePartitions(ctx, 4, topic)
	check(err)
	check(grown.Error())
	described, err := admin.ListTopics(ctx, topic)
	check(err)
	say(line{"step": "grow", "partitions": len(described[topic].Partitions)})

	deleteRecords(ctx, client, admin, topic)

	deleted, err := admin.DeleteTopics(ctx, topic)
	check(err)
	check(deleted.Error())
	listed, err := admin.ListTopics(ctx)
	check(err)
	say(line{"step": "delete", "listed": listed.Has(topic)})
}

func retention(ctx context.Context, admin *kadm.Client, topic string) string {
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err)
	check(described[0].Err)
	found := slices.IndexFunc(described[0].Configs, func(each kadm.Config) bool { return each.Key == setting })
	return described[0].Configs[found].MaybeValue()
}

func deleteRecords(ctx context.Context, client *kgo.Client, admin *kadm.Client, topic string) {
	for range 10 {
		check(client.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
	}
	before := kadm.Offsets{}
	before.AddOffset(topic, 0, 4, -1)
	trimmed, err := admin.DeleteRecords(ctx, before)
	check(err)
	check(trimmed.Error())
	starts, err := admin.ListStartOffsets(ctx, topic)
	check(err)
	ends, err := admin.ListEndOffsets(ctx, topic)
	check(err)
	say(line{"step": "delete records", "start": starts[topic][0].Offset, "end": ends[topic][0].Offset})
	before.AddOffset(topic, 0, 99, -1)
	trimmed, err = admin.DeleteRecords(ctx, before)
	check(err)
	refused("delete records beyond", trimmed.Error())
}

// administerGroup looks at a group that has one committed offset and no members, and removes it bit by bit.
func administerGroup(ctx context.Context, bootstrap, topic, group string) {
	client := connect(bootstrap)
	defer client.Close()
	admin := kadm.NewClient(client)

	listed, err := admin.ListGroups(ctx)
	check(err)
	say(line{"step": "list", "listed": slices.Contains(listed.Groups(), group)})
	described, err := admin.DescribeGroups(ctx, group)
	check(err)
	check(described.Error())
	say(line{"step": "describe", "state": described[group].State, "members": len(described[group].Members)})
	fetched, err := admin.FetchOffsets(ctx, group)
	check(err)
	offset, _ := fetched.Lookup(topic, 0)
	say(line{"step": "offsets", "offset": offset.At})

	moved := kadm.Offsets{}
	moved.AddOffset(topic, 0, 3, -1)
	check(admin.CommitAllOffsets(ctx, group, moved))
	fetched, err = admin.FetchOffsets(ctx, group)
	check(err)
	offset, _ = fetched.Lookup(topic, 0)
	say(line{"step": "alter offsets", "offset": offset.At})

	forgotten, err := admin.DeleteOffsets(ctx, group, moved.TopicsSet())
	check(err)
	check(forgotten.Error())
	fetched, err = admin.FetchOffsets(ctx, group)
	check(err)
	say(line{"step": "delete offsets", "left": len(slices.Collect(maps.Keys(fetched)))})

	again := admin.CommitAllOffsets(ctx, group, moved)
	check(again)
	_, err = admin.DeleteGroup(ctx, group)
	check(err)
	listed, err = admin.ListGroups(ctx)
	check(err)
	say(line{"step": "delete", "listed": slices.Contains(listed.Groups(), group)})
	_, err = admin.DeleteGroup(ctx, group)
	refused("delete again", err)
}
