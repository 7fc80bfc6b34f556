"""What is beyond this machine: a chain in an object store or HDFS, brought there and fetched from there.

Trainers and servers go on working on local directories, a spool and a mirror; this room keeps the two and the store in
step. It never decides what a chain means (`hotdelta.chain` does), and never imports TensorFlow.
"""
