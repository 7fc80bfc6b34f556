"""Training on several devices and on several machines."""
