"""How do many processes parse HTTP and JSON for one that has the model?

Front-end processes speak HTTP, read predictions into arrays and write arrays into answers; the model's process gets
packed messages, and everything that is no prediction as it came. A front-end never imports TensorFlow, has no tables,
decides nothing about models, and keeps nothing that is lost with it but the requests of its own clients.
"""
