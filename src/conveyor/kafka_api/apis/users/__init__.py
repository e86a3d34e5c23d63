"""Users: how a client proves who it is, and the credentials of users."""
