"""The dashboard: its files, what it is told, and the page in a browser."""
