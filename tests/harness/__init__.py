"""Helpers that tests of several folders share.

clocks       wall clocks that tests control
"""
