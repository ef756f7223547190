"""Proves who a client is, and decides what it may do.

identity         a role, how it was proven, and for whom it asks
keys             keys of tokens, read from files and URLs
tokens           tokens that are signed with a key of this broker
oidc             tokens of an OpenID Connect issuer
basic            users and passwords in an htpasswd file
apr1             the hash that Apache's htpasswd writes by default
certificates     roles of client certificates
rights           the right that each command and each path needs
grants           the rights of roles in a namespace
resources        the objects of requests
refusals         what lacks, and what would help
authorization    what a role may do
broker_token     the token by which a broker introduces itself to others
audit            the log of who did what
authentication   all methods of one broker
configured       the methods that the settings name
"""
