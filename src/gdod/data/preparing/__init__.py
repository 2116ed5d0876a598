"""Prepare raw tables: split, fit an encoder on the training rows, encode, shuffle, store."""
