"""The binary protocol's side of a broker: connections, commands, requests and their limits.

accept             the port: takes connections, and refuses them when there are too many
connection         one client's connection: reading frames, keeping alive, sending
commands           what is carried out in the order of the frames
requests           what has to wait for something, each in a task of its own
request_turns      how many requests are under way at once
request_counts     how many commands came, and how many were refused
refused_requests   requests that clients repeat although they were refused
refusal_log        one counted line in the log for refusals
repeated_lines     the same line in the log at most once in an interval
lookup             which broker serves a topic
shared_reads       one read of a record for all that ask at the same time
"""
