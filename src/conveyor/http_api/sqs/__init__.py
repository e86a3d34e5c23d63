"""The Amazon SQS API. A queue is a topic and a subscription of the same name.

`protocols` has the operations and both forms of their requests and answers, `content` what a message consists of, and
`signing` the signatures of requests. `queues` and `messages` are what the cluster and the log hold of these; `actions`
does what an operation asks for, and `moves` what goes on after it. At the top: the endpoints, and the errors, which all
of these raise.
"""
