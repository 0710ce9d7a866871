"""Users, rights and quotas as options and files name them."""
