"""Everything that must hold before an update touches live memory: layout, finite values, norms, shares, quarantine.

Values in, a complaint or nothing out. Never changes the model and never imports `follow`.
"""
