"""How does what a trainer commits on its machine get into a store, and back to a trainer on another machine?

A trainer writes to a spool, a chain directory like any. This room sends what is committed there on its way, in its own
threads, and keeps run numbers unique among all trainers of a store. It never decides when to save, and never holds
training up but where it is told to.
"""
