"""The follower's side of replication: fetch rounds from one leader, over one connection and one fetch session."""
