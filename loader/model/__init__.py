"""The model in memory: predictions, the gate, staging, applying, undoing, a second model beside it.

Answers how live memory changes. Never decides to which position.
"""
