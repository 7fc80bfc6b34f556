"""What operators order (roll back, pin, resume, release), how it reaches the updater, and how it survives a restart.

Orders wait their turn in the updater's thread. Never speaks HTTP.
"""
