"""Shards and server partitions on any node of a Ray: begin with `world.py`, who looks after them, and `actors.py`.

`messages.py` is what passes between them, `remote.py` the server as seen from here, `account.py` the minibatches that
it reported, `nodes.py` finds a Ray or starts one. Nothing else imports this room: Ray is an extra.
"""
