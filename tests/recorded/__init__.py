"""Conversations of clients with the embedded server: recorded once with the real clients, replayed without them.

``python -m tests.recorded.conversations [CLIENT ...]`` records them in `data/`; `test_conversations.py` asks the server
of today the same, and compares its answers. After a change on purpose, record again and read the difference.
"""
