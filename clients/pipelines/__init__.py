"""Whole jobs around topics: `daybook pipeline`.

archive  topics in Parquet files, with a manifest that says which offsets they hold
"""
