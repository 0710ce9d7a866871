"""Who looks: logins, sessions, and the clients by which a session asks the cluster."""
