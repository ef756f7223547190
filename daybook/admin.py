"""Topics, subscriptions and namespaces, by the admin REST of a broker, on trio.

`daybook.blocking.connect_admin` opens the same without trio.
"""

from daybook.clients.python.admin import Admin as Admin
