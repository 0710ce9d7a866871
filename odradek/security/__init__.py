"""Security: TLS, logins by SASL, principals, delegation tokens; folders for ACLs, doors, the audit log and
OAUTHBEARER.
"""
