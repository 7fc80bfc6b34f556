"""Answers predictions over HTTP and says with each answer which position it came from."""
