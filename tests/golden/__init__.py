"""Chains that earlier commits wrote, kept as data: what was written once must be read for ever.

`chains/<name>/` holds a run directory and `expected.json`, which says what the writer's own variables were at each
position. Nothing in there is ever written again. When the format changes, add chains beside them:
`python -m tests.golden.write DIRECTORY NAME...`.
"""
