"""The controller's decisions about ACLs, users, delegation tokens and quotas."""
