"""The controller's decisions about access: ACLs, users, delegation tokens, quotas."""
