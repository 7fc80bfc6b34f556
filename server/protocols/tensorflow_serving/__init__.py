"""TensorFlow Serving's REST API: its paths, its JSON and its errors.

What only its clients expect is here; what a signature takes is judged as for /predict.
"""
