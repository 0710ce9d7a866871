"""The audit log: the record of logins, denials and changes."""
