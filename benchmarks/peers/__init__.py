"""This library measured beside the libraries that a user would pick instead."""
