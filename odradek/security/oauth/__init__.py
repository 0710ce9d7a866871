"""Logins by OAUTHBEARER, with tokens that an issuer has signed."""
