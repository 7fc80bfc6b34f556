"""What a Keras model holds: variables under keys that are the same when it is built again, optimizers, rules for ids.

Looks at models and remembers what they held. Never trains, saves or loads.
"""
