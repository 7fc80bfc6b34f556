"""What an operator sees: one page, and the stream that keeps it live.

Only reads what others say of themselves. Orders go from the page to `admin`, as from every other client.
"""
