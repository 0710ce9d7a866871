"""The forms in which options and files name users, rights and quotas."""
