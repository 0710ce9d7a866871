"""What clients may do and use: ACLs, users, delegation tokens, quotas, as decisions of the controller."""
