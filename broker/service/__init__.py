"""The binary protocol's side of a broker: connections, commands, requests and their limits.

accept             the port: accepts connections, and refuses them when there are too many
connection         one client's connection: the session, keep-alive, sending
handlers           carries out what a client sends: commands and requests
client_producers   the producers of one connection; `client_consumers` has its consumers
openings           the openings of producers or consumers, which may be closed meanwhile
client_rights      checks each command of a client
frame_turns        how much is carried out at once, and whose commands are next
request_turns      how many requests are under way at once, and which begins next
refused_requests   sends refusals, late if a client repeats a refused request
shared_pace        how long the requests of a role or an address wait that is refused too often
request_counts     how many commands arrived and were refused; the log line for refusals
lookup             which broker serves a topic
"""
