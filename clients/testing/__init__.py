"""Clusters for tests, demonstrations and measurements.

standalone    `daybook standalone` as a child process
"""
