"""Users: how a client proves who it is, the credentials of users, and ACLs: who may do what."""
