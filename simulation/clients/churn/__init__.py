"""Topics that are made, grown, changed, deleted and made again under a few names, and clients that use them meanwhile.

topic_admin     changes the topics, and creates subscriptions and schedules
topic_user      publishes to the topics, reads them and drains their subscriptions
churn_ledger    what both are promised
"""
