"""Logins by OAUTHBEARER: the token of an issuer."""
